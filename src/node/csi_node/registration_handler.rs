//! The handler of plugins of the type `CSIPlugin`.

use super::manager::NodeInfoManager;
use crate::resources::plugin_manager::{Deregister, PluginHandler, RegisteredPlugin};
use futures::future::BoxFuture;

impl PluginHandler for NodeInfoManager {
    fn validate(&self, plugin: &RegisteredPlugin) -> Result<(), String> {
        self.0.table.validate(plugin)
    }

    fn register(&self, plugin: RegisteredPlugin) -> BoxFuture<'_, Result<Deregister, String>> {
        Box::pin(async move {
            let table_id = self.0.table.register(&plugin)?;
            let id = self.begin(&plugin.name);
            let completed = self.complete(&plugin.name, id).await;
            let manager = self.clone();
            let deregister: Deregister = Box::pin(async move {
                manager.0.table.deregister(&plugin.name, table_id);
                manager.end(&plugin.name, id);
            });
            match completed {
                Ok(()) => Ok(deregister),
                Err(error) => {
                    deregister.await;
                    Err(error)
                }
            }
        })
    }
}
