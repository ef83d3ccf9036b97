//! Version v1alpha1 of the API, which lists only devices, and the dispatch by version.

use super::PodResources;
use crate::model::PodExt as _;
use crate::resources::v1alpha1 as api;
use api::pod_resources_lister_server::PodResourcesLister;
pub(super) use api::pod_resources_lister_server::PodResourcesListerServer as AlphaServer;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tower::Service;

/// The service in version v1alpha1.
pub(super) struct PodResourcesV1alpha1(pub(super) Arc<PodResources>);

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesV1alpha1 {
    async fn list(
        &self,
        _: Request<api::ListPodResourcesRequest>,
    ) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        let all = &self.0;
        all.rate.admit()?;
        all.metrics.total.with(["v1alpha1"]).inc();
        let pods = all.listed();
        let pods = pods.iter().map(|pod| {
            let containers = pod.containers().iter().map(|container| {
                let devices = all.of_container(pod, container).devices.into_iter();
                api::ContainerResources {
                    name: container.name.clone(),
                    devices: devices
                        .map(|device| api::ContainerDevices {
                            resource_name: device.resource_name,
                            device_ids: device.device_ids,
                        })
                        .collect(),
                }
            });
            api::PodResources {
                name: pod.name().into(),
                namespace: pod.namespace().into(),
                containers: containers.collect(),
            }
        });
        Ok(Response::new(api::ListPodResourcesResponse { pod_resources: pods.collect() }))
    }
}

/// Dispatches requests to the requested version.
#[derive(Clone)]
pub(super) struct VersionDispatch<S> {
    pub(super) v1: S,
    pub(super) v1alpha1: AlphaServer<PodResourcesV1alpha1>,
}

type GrpcResponse = http::Response<Body>;

impl<S> Service<http::Request<Body>> for VersionDispatch<S>
where
    S: Service<http::Request<Body>, Response = GrpcResponse, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = GrpcResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<GrpcResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().starts_with("/v1alpha1.") {
            Box::pin(self.v1alpha1.call(request))
        } else {
            Box::pin(self.v1.call(request))
        }
    }
}
