mod adopted;
mod bench;
mod driver;
mod properties;
mod rules;
mod spec;
