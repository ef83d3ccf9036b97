mod container;
mod fixture;
mod following;
mod links;
mod properties;
mod reading;
