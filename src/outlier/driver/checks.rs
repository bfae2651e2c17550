//! Runs periodic health checks, one loop per instance, and synthetic trials.

use std::time::Duration;

use super::{Checked, Driver, Health};
use crate::config::types::{HealthCheck, HealthCheckKind, Protocol};
use crate::endpoint::Address;
use crate::health::checker::{self, Check};
use crate::health::counter::HealthCounter;
use crate::outlier::LeaseId;

impl Driver {
    pub(super) fn restart_checks(&mut self) {
        let now = self.clock.now();
        let mut cleared = Vec::new();
        for (address, member) in &mut self.members {
            if member
                .health
                .take()
                .is_some_and(|health| !health.counter.passing())
            {
                cleared.push(address.clone());
            }
        }
        for address in cleared {
            // Without a check, and before the first one, an instance counts as passing.
            self.detector.handle(
                crate::outlier::Input::Check {
                    address,
                    passing: true,
                },
                now,
            );
        }
        self.start_missing_checks();
    }

    pub(super) fn start_missing_checks(&mut self) {
        let Some(settings) = self.service.health_check.clone() else {
            return;
        };
        let missing: Vec<Address> = self
            .members
            .iter()
            .filter(|(_, member)| member.health.is_none())
            .map(|(address, _)| address.clone())
            .collect();
        for address in missing {
            let check = self.configured_check(&settings, &address);
            let Some(member) = self.members.get_mut(&address) else {
                continue;
            };
            let target = checked_address(&address, settings.port);
            let policy = self.policy.clone();
            let (sender, instance) = (self.checked.0.clone(), member.instance.id);
            let (interval, timeout) = (settings.interval, settings.timeout);
            // Spread over a tenth of the interval, by the instance's number.
            let spread = interval / 10 * u32::try_from(instance % 16).unwrap_or(0) / 16;
            let task = tokio::spawn(async move {
                let mut wait = Duration::ZERO;
                loop {
                    tokio::time::sleep(wait).await;
                    wait = interval.saturating_add(spread);
                    let verdict = checker::run(&check, &target, timeout, &policy).await;
                    let address = address.clone();
                    let report = Checked::Health {
                        address,
                        instance,
                        verdict,
                    };
                    if sender.send(report).await.is_err() {
                        return;
                    }
                }
            });
            member.health = Some(Health {
                counter: HealthCounter::new(settings.rise, settings.fall),
                message: "not checked yet".to_owned(),
                task: task.abort_handle(),
            });
        }
    }

    /// Runs a synthetic trial; its answer comes back as a [`Checked::Trial`].
    pub(super) fn start_trial(&self, address: Address, lease: LeaseId, limit: Duration) {
        let (check, target) = match &self.service.health_check {
            Some(settings) => (
                self.configured_check(settings, &address),
                checked_address(&address, settings.port),
            ),
            None => (self.default_check(&address), address.clone()),
        };
        let (sender, policy) = (self.checked.0.clone(), self.policy.clone());
        // The lease bounds it: a task that outlives it reports to nobody.
        tokio::spawn(async move {
            let verdict = checker::run(&check, &target, limit, &policy).await;
            let _gone = sender
                .send(Checked::Trial {
                    address,
                    lease,
                    verdict,
                })
                .await;
        });
    }

    fn configured_check(&self, settings: &HealthCheck, address: &Address) -> Check {
        match &settings.kind {
            HealthCheckKind::Tcp => Check::Tcp,
            HealthCheckKind::Http { path, expect } => Check::Http {
                path: path.to_string(),
                host: settings
                    .host
                    .as_ref()
                    .map_or_else(|| self.host(address), ToString::to_string),
                http2: self.service.protocol == Protocol::Http2,
                expect: Some(expect.clone()),
            },
        }
    }

    fn default_check(&self, address: &Address) -> Check {
        let host = self.host(address);
        match self.service.protocol {
            Protocol::Grpc => Check::Grpc { host },
            Protocol::Auto | Protocol::Http1 => Check::Http {
                path: "/".to_owned(),
                host,
                http2: false,
                expect: None,
            },
            Protocol::Http2 => Check::Http {
                path: "/".to_owned(),
                host,
                http2: true,
                expect: None,
            },
        }
    }

    /// The service's name where it can be a Host, else the address.
    fn host(&self, address: &Address) -> String {
        let name = &self.upstream.name;
        if crate::router::Authority::parse(name).is_ok() {
            name.to_string()
        } else {
            address.to_string()
        }
    }
}

fn checked_address(address: &Address, port: Option<u16>) -> Address {
    let Some(port) = port else {
        return address.clone();
    };
    let host = address
        .as_str()
        .rsplit_once(':')
        .map_or("", |(host, _)| host);
    Address::from_parts(host, port).unwrap_or_else(|_| address.clone())
}
