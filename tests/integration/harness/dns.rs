//! A DNS server of the test: UDP on a free port of loopback, each name says what it is told to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

/// What a name answers.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// A or AAAA records, with their TTL.
    Ips(u32, Vec<IpAddr>),
    /// SRV records (priority, weight, port, target), with their TTL.
    Services(u32, Vec<(u16, u16, u16, String)>),
    /// SERVFAIL.
    Fails,
}

/// The server; names without an entry do not exist.
#[derive(Debug)]
pub(crate) struct DnsStub {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<BTreeMap<String, Says>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl DnsStub {
    pub(crate) fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let stub = Self {
            address: socket.local_addr().unwrap(),
            zone: Arc::default(),
            asked: Arc::default(),
        };
        let (zone, asked) = (Arc::clone(&stub.zone), Arc::clone(&stub.asked));
        std::thread::spawn(move || {
            let mut question = [0_u8; 1500];
            while let Ok((length, peer)) = socket.recv_from(&mut question) {
                let (name, kind, end) = read_question(&question[..length]);
                asked.lock().unwrap().push(name.clone());
                let says = zone.lock().unwrap().get(&name).cloned();
                let answer = answer(&question[..end], kind, says.as_ref());
                socket.send_to(&answer, peer).unwrap();
            }
        });
        stub
    }

    pub(crate) fn set(&self, name: &str, says: Says) {
        self.zone.lock().unwrap().insert(name.to_owned(), says);
    }

    /// How often a name was asked for.
    pub(crate) fn count(&self, name: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|other| *other == name).count()
    }

    /// `registries.NAME` of it that asks often.
    pub(crate) fn registry(&self, more: &str) -> String {
        format!(
            "{{kind: dns, servers: [\"{}\"], min_ttl: 100ms, empty_grace: 1s{more}}}",
            self.address
        )
    }
}

/// The first question's name and type, and where it ends.
fn read_question(message: &[u8]) -> (String, u16, usize) {
    let (mut name, mut at) = (Vec::new(), 12);
    while message[at] != 0 {
        let length = usize::from(message[at]);
        let label = &message[at + 1..=at + length];
        name.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length + 1;
    }
    let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
    (name.join("."), kind, at + 5)
}

fn answer(question: &[u8], kind: u16, says: Option<&Says>) -> Vec<u8> {
    let (a, aaaa, srv) = (1, 28, 33);
    let (code, ttl, data): (u8, u32, Vec<Vec<u8>>) = match says {
        None => (3, 0, Vec::new()),
        Some(Says::Fails) => (2, 0, Vec::new()),
        Some(Says::Ips(ttl, ips)) => {
            let wanted = ips.iter().filter_map(|ip| match ip {
                IpAddr::V4(ip) => (kind == a).then(|| ip.octets().to_vec()),
                IpAddr::V6(ip) => (kind == aaaa).then(|| ip.octets().to_vec()),
            });
            (0, *ttl, wanted.collect())
        }
        Some(Says::Services(ttl, records)) => {
            let wanted = records.iter().filter(|_| kind == srv);
            (0, *ttl, wanted.map(service).collect())
        }
    };
    let mut out = question[..2].to_vec();
    out.extend([
        0x85,
        0x80 | code,
        0,
        1,
        0,
        u8::try_from(data.len()).unwrap(),
    ]);
    out.extend([0, 0, 0, 0]);
    out.extend(&question[12..]);
    for data in data {
        // The name is that of the question.
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        out.extend(data);
    }
    out
}

fn service((priority, weight, port, target): &(u16, u16, u16, String)) -> Vec<u8> {
    let mut data = [*priority, *weight, *port].map(u16::to_be_bytes).concat();
    for label in target.split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend(label.bytes());
    }
    data.push(0);
    data
}
