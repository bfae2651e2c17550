//! Counters of the data plane and how they are shown. A leaf: nothing here decides.
//! `cells` is what request tasks write, `names` are the families, `collect` puts a scrape together,
//! `exposition` writes it.

pub mod cells;
pub mod collect;
pub mod exposition;
pub mod names;
mod sheet;
