mod adopted;
mod bench;
mod driver;
mod early;
mod early_tasks;
mod properties;
mod rules;
mod spec;
