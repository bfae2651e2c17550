//! Under which address callers reach the app: a written one, that of an interface, or, by itself,
//! `POD_IP` and else the address of the interface that the default route leaves by.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use crate::config::types::AdvertiseAddress;

/// The variable of Kubernetes's downward API.
const POD_IP: &str = "POD_IP";
/// Addresses of documentation: nobody has them, and nothing is sent there.
const FAR: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The address to advertise. `variable` reads the environment.
///
/// # Errors
/// Why there is none, and what to write instead.
pub(super) fn address(
    wanted: &AdvertiseAddress,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Arc<str>, String> {
    match wanted {
        AdvertiseAddress::Fixed(address) => Ok(Arc::clone(address)),
        AdvertiseAddress::Interface(name) => of_interface(name),
        AdvertiseAddress::Auto => {
            if let Some(text) = variable(POD_IP).filter(|text| !text.is_empty()) {
                return match text.parse::<IpAddr>() {
                    Ok(ip) => Ok(ip.to_string().into()),
                    Err(_) => Err(format!("POD_IP is `{text}`, which is no IP address")),
                };
            }
            let found = FAR.iter().find_map(|far| towards(far));
            let missing = || {
                "no default route tells our address; write `advertise.address`, or set POD_IP"
                    .to_owned()
            };
            found.map(|ip| ip.to_string().into()).ok_or_else(missing)
        }
    }
}

/// Our address on the way to `far`. A connected datagram socket sends nothing.
fn towards(far: &str) -> Option<IpAddr> {
    let far: SocketAddr = far.parse().ok()?;
    let any = match far {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(far).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// The first address of an interface, IPv4 before IPv6, no link-local one.
fn of_interface(name: &str) -> Result<Arc<str>, String> {
    let all = if_addrs::get_if_addrs().map_err(|error| format!("interfaces: {error}"))?;
    let mut own: Vec<IpAddr> = all
        .iter()
        .filter(|interface| interface.name == name && !interface.is_link_local())
        .map(if_addrs::Interface::ip)
        .collect();
    own.sort_by_key(IpAddr::is_ipv6);
    match own.first() {
        Some(ip) => Ok(ip.to_string().into()),
        None => {
            let mut names: Vec<&str> = all.iter().map(|i| i.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            let names = names.join(", ");
            Err(format!(
                "no interface `{name}` with an address; there are {names}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_downward_api_comes_first_and_must_be_an_address() {
        let auto = |ip: &'static str| address(&AdvertiseAddress::Auto, |_| Some(ip.to_owned()));
        assert_eq!(auto("10.1.2.3").unwrap().as_ref(), "10.1.2.3");
        assert_eq!(auto("2001:db8::5").unwrap().as_ref(), "2001:db8::5");
        assert!(auto("pod").unwrap_err().contains("POD_IP"));
    }

    #[test]
    fn an_interface_has_its_address_and_a_wrong_name_tells_the_others() {
        let of = |name: &str| address(&AdvertiseAddress::Interface(name.into()), |_| None);
        assert_eq!(of("lo").unwrap().as_ref(), "127.0.0.1");
        let error = of("eth77").unwrap_err();
        assert!(error.contains("eth77") && error.contains("lo"), "{error}");
    }

    #[test]
    fn the_address_towards_this_machine_is_its_own() {
        assert_eq!(towards("127.0.0.1:9"), Some(IpAddr::from([127, 0, 0, 1])));
    }
}
