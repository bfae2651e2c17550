//! The JSON of an instance as Eureka's servers want it: the order of its members is theirs, every
//! member that some release needs is there, `@class` before `name`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::endpoint::Weight;
use crate::registration::record::Record;

/// Names of applications are upper-case.
pub(super) fn app(record: &Record) -> String {
    record.service.to_uppercase()
}

/// Stable over restarts, and one of a kind.
pub(super) fn id(record: &Record) -> String {
    format!("{}:{}:{}", record.address, record.service, record.port)
}

#[derive(Serialize)]
struct Body<'a> {
    instance: Instance<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Instance<'a> {
    instance_id: &'a str,
    host_name: &'a str,
    app: &'a str,
    ip_addr: &'a str,
    vip_address: &'a str,
    secure_vip_address: &'a str,
    status: &'a str,
    /// Lower case: there are servers that answer 500 without it.
    overriddenstatus: &'static str,
    port: Port,
    secure_port: Port,
    country_id: u8,
    data_center_info: DataCenter,
    lease_info: Lease,
    metadata: BTreeMap<&'a str, &'a str>,
    last_updated_timestamp: &'a str,
    last_dirty_timestamp: &'a str,
}

#[derive(Serialize)]
struct Port {
    #[serde(rename = "$")]
    number: u16,
    #[serde(rename = "@enabled")]
    enabled: &'static str,
}

#[derive(Serialize)]
struct DataCenter {
    #[serde(rename = "@class")]
    class: &'static str,
    name: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lease {
    renewal_interval_in_secs: u64,
    duration_in_secs: u64,
}

/// The body of a POST.
pub(super) fn json(record: &Record, status: &str, interval: Duration, stamp: u64) -> Vec<u8> {
    let (app, id, stamp) = (app(record), id(record), stamp.to_string());
    let interval = interval.as_secs().max(1);
    let vip = record.service.to_lowercase();
    let mut metadata: BTreeMap<&str, &str> = record
        .metadata
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    // Eureka knows no weights; by convention they stand here.
    let weight = (f64::from(record.weight.thousandths()) / 1000.0).to_string();
    if record.weight != Weight::ONE {
        metadata.entry("weight").or_insert(&weight);
    }
    let body = Body {
        instance: Instance {
            instance_id: &id,
            host_name: &record.address,
            app: &app,
            ip_addr: &record.address,
            vip_address: &vip,
            secure_vip_address: &vip,
            status,
            overriddenstatus: "UNKNOWN",
            port: Port {
                number: record.port,
                enabled: "true",
            },
            secure_port: Port {
                number: 443,
                enabled: "false",
            },
            country_id: 1,
            data_center_info: DataCenter {
                class: "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo",
                name: "MyOwn",
            },
            lease_info: Lease {
                renewal_interval_in_secs: interval,
                duration_in_secs: interval.saturating_mul(3),
            },
            metadata,
            last_updated_timestamp: &stamp,
            last_dirty_timestamp: &stamp,
        },
    };
    serde_json::to_vec(&body).unwrap_or_default()
}
