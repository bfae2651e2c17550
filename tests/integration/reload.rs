//! Reloads of the built binary: by a changed file, by SIGHUP, by the admin API. What changes them is
//! what people and tools do: an editor's rename, a Kubernetes mount, a slow writer, a mistake.

mod files;
mod isolation;
mod load;
