mod container;
mod fixture;
mod following;
mod properties;
mod reading;
