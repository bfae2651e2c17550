//! What one subscription reads of the tree: the providers and configurators of an interface, the
//! instances of applications, the mapping from one to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;

use super::interest::{Interest, News};
use super::session::Session;
use crate::config::types::ZookeeperLayout;
use crate::discovery::subscription::Failure;
use crate::protocol::dubbo_registry::{self, Instance, Mapped, Override, Provider, Wanted};

/// Where Curator keeps applications.
const APPLICATIONS: &str = "/services";

/// The nodes of one service, and what was read of them.
#[derive(Debug)]
pub(super) struct Tree {
    wanted: Wanted,
    layout: ZookeeperLayout,
    root: String,
    providers: Vec<Arc<str>>,
    configurators: Vec<Arc<str>>,
    applications: BTreeSet<String>,
    /// By path; `None`: a node that cannot be used.
    instances: BTreeMap<Arc<str>, Option<Instance>>,
}

impl Tree {
    pub(super) fn new(wanted: Wanted, layout: ZookeeperLayout, root: &str) -> Self {
        Self {
            wanted,
            layout,
            root: root.to_owned(),
            providers: Vec::new(),
            configurators: Vec::new(),
            applications: BTreeSet::new(),
            instances: BTreeMap::new(),
        }
    }

    /// Reads what may have changed. After a failure the next call reads it again.
    pub(super) async fn refresh(
        &mut self,
        session: &Arc<Session>,
        interest: &Arc<Interest>,
        news: &News,
    ) -> Result<(), Failure> {
        // Whoever is still there is read and heard of again below.
        if news.reset {
            for path in std::mem::take(&mut self.instances).into_keys() {
                session.interests.remove(&path, interest);
            }
        }
        for path in &news.paths {
            if self.instances.remove(path).is_some() {
                session.interests.remove(path, interest);
            }
        }
        if self.layout != ZookeeperLayout::Application {
            self.providers = self.below("providers", session, interest).await?;
            self.configurators = self.below("configurators", session, interest).await?;
        }
        if self.layout != ZookeeperLayout::Interface {
            self.read_applications(session, interest).await?;
        }
        Ok(())
    }

    /// The endpoints now.
    pub(super) fn map(&self, now_ms: u64) -> Mapped {
        let providers: Vec<Option<Provider>> = self
            .providers
            .iter()
            .map(|node| Provider::from_node(node))
            .collect();
        let skipped = providers.iter().filter(|p| p.is_none()).count()
            + self.instances.values().filter(|i| i.is_none()).count();
        let providers: Vec<Provider> = providers.into_iter().flatten().collect();
        let overrides = self.configurators.iter();
        let overrides: Vec<Override> = overrides.filter_map(|o| Override::from_node(o)).collect();
        let instances: Vec<Instance> = self.instances.values().flatten().cloned().collect();
        let mut mapped =
            dubbo_registry::map(&self.wanted, &providers, &overrides, &instances, now_ms);
        mapped.skipped += skipped;
        mapped
    }

    /// The names below a folder of the interface; a missing one is empty, and its coming is watched.
    async fn below(
        &self,
        folder: &str,
        session: &Arc<Session>,
        interest: &Arc<Interest>,
    ) -> Result<Vec<Arc<str>>, Failure> {
        let interface = encoded(&self.wanted.interface);
        let path: Arc<str> = format!("/{}/{interface}/{folder}", self.root).into();
        session.interests.add(&path, interest);
        Ok(session.children(&path).await?.unwrap_or_default())
    }

    async fn read_applications(
        &mut self,
        session: &Arc<Session>,
        interest: &Arc<Interest>,
    ) -> Result<(), Failure> {
        let interface = encoded(&self.wanted.interface);
        let mapping: Arc<str> = format!("/{}/mapping/{interface}", self.root).into();
        session.interests.add(&mapping, interest);
        let mut applications = BTreeSet::from([self.wanted.interface.clone()]);
        match session.data(&mapping).await? {
            Some(data) => {
                let text = String::from_utf8_lossy(&data);
                let named = text.split(',').map(str::trim).filter(|name| is_name(name));
                applications.extend(named.map(str::to_owned));
            }
            None => {
                // Its coming is watched by this.
                session
                    .read(crate::protocol::zookeeper::Read::Exists, &mapping)
                    .await?;
            }
        }
        let mut current: BTreeSet<Arc<str>> = BTreeSet::new();
        for application in &applications {
            let folder: Arc<str> = format!("{APPLICATIONS}/{application}").into();
            session.interests.add(&folder, interest);
            let names = session.children(&folder).await?.unwrap_or_default();
            current.extend(names.iter().map(|n| Arc::from(format!("{folder}/{n}"))));
        }
        for gone in self
            .instances
            .keys()
            .filter(|path| !current.contains(*path))
        {
            session.interests.remove(gone, interest);
        }
        self.instances.retain(|path, _| current.contains(path));
        self.applications = applications;
        self.read_instances(&current, session, interest).await
    }

    /// Reads the instances that are not known yet, as many at once as the session allows.
    async fn read_instances(
        &mut self,
        current: &BTreeSet<Arc<str>>,
        session: &Arc<Session>,
        interest: &Arc<Interest>,
    ) -> Result<(), Failure> {
        let mut reads = JoinSet::new();
        for path in current
            .iter()
            .filter(|path| !self.instances.contains_key(*path))
        {
            session.interests.add(path, interest);
            let (session, path) = (Arc::clone(session), path.clone());
            reads.spawn(async move {
                let found = session.data(&path).await;
                (path, found)
            });
        }
        let mut failure = None;
        while let Some(done) = reads.join_next().await {
            let Ok((path, found)) = done else { continue };
            match found {
                Ok(Some(data)) => {
                    let instance = Instance::from_node(&data);
                    if let Err(error) = &instance {
                        tracing::debug!(%path, %error, "an instance that cannot be used");
                    }
                    self.instances.insert(path, instance.ok());
                }
                // It went meanwhile; the watch of its folder tells.
                Ok(None) => session.interests.remove(&path, interest),
                Err(error) => {
                    session.interests.remove(&path, interest);
                    failure = Some(error);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// As Dubbo's URLEncoder writes it.
fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

/// What can be one level of a path.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0'])
}
