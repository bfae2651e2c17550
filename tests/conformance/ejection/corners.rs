//! Corners beyond the worked examples.
