//! Against a rustls server on loopback, with the certificates of `tests/fixtures/tls`.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;

use super::*;
use crate::http_client::{HttpClient, Target};

const CLIENT: HttpClient = HttpClient {
    timeout: Duration::from_secs(20),
    max_body: 64,
};

fn fixture(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls");
    PathBuf::from(folder).join(name)
}

fn pem(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// A server that answers `over TLS` to every request, and may want a certificate of ours.
async fn server(mutual: bool) -> u16 {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if mutual {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem("ca.pem")).unwrap())
            .unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        builder.with_client_cert_verifier(verifier.unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let chain = vec![CertificateDer::from_pem_slice(&pem("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&pem("server.key")).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = [0; 1024];
            if stream.read(&mut request).await.is_ok() {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nover TLS";
                drop(stream.write_all(answer).await);
                drop(stream.shutdown().await);
            }
        }
    });
    port
}

async fn ask(settings: RegistryTls, address: String) -> Result<Bytes, HttpError> {
    let target = Target::Tls(address, Arc::new(TlsClient::new(settings)));
    let request = Request::get("/").body(Full::default()).unwrap();
    CLIENT.send(&target, request).await.map(|r| r.into_body())
}

fn trusting(ca: &str) -> RegistryTls {
    RegistryTls {
        enabled: true,
        ca_file: Some(fixture(ca)),
        ..RegistryTls::default()
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_authority_and_name() {
    let port = server(false).await;
    let by_ip = ask(trusting("ca.pem"), format!("127.0.0.1:{port}")).await;
    assert_eq!(by_ip.unwrap(), "over TLS");
    let mut renamed = trusting("ca.pem");
    renamed.server_name = Some("registry.test".to_owned());
    let by_name = ask(renamed.clone(), format!("127.0.0.1:{port}")).await;
    assert_eq!(by_name.unwrap(), "over TLS");
    renamed.server_name = Some("elsewhere.test".to_owned());
    let other_name = ask(renamed, format!("127.0.0.1:{port}")).await;
    let error = other_name.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
    let stranger = ask(trusting("other-ca.pem"), format!("127.0.0.1:{port}")).await;
    let error = stranger.unwrap_err().to_string();
    assert!(
        error.starts_with("no TLS: ") && error.contains("invalid peer certificate"),
        "{error}"
    );
    let insecure = RegistryTls {
        insecure: true,
        ..trusting("other-ca.pem")
    };
    let answer = ask(insecure, format!("127.0.0.1:{port}")).await;
    assert_eq!(answer.unwrap(), "over TLS");
}

#[tokio::test]
async fn our_certificate_is_shown_where_one_is_wanted() {
    let port = server(true).await;
    let mutual = RegistryTls {
        cert_file: Some(fixture("client.pem")),
        key_file: Some(fixture("client.key")),
        ..trusting("ca.pem")
    };
    let answer = ask(mutual, format!("127.0.0.1:{port}")).await;
    assert_eq!(answer.unwrap(), "over TLS");
    let without = ask(trusting("ca.pem"), format!("127.0.0.1:{port}")).await;
    let error = without.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
}

#[tokio::test]
async fn a_replaced_authority_is_used_by_the_next_connection() {
    let port = server(false).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let settings = RegistryTls {
        enabled: true,
        ca_file: Some(file.clone()),
        ..RegistryTls::default()
    };
    let target = Target::Tls(
        format!("127.0.0.1:{port}"),
        Arc::new(TlsClient::new(settings)),
    );
    let send = async || {
        let request = Request::get("/").body(Full::default()).unwrap();
        CLIENT.send(&target, request).await
    };
    let missing = send().await.unwrap_err().to_string();
    assert!(missing.contains("ca.pem: No such file"), "{missing}");
    for (text, good) in [
        (pem("other-ca.pem"), false),
        (pem("ca.pem"), true),
        (b"rubbish".to_vec(), false),
        (pem("ca.pem"), true),
    ] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(send().await.is_ok(), good);
    }
}

#[tokio::test]
async fn plain_http_is_no_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
    });
    let error = ask(trusting("ca.pem"), address).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls(_)), "{error}");
}

#[test]
fn hosts_have_no_brackets() {
    assert_eq!(host_of("[::1]:8501"), "::1");
    assert_eq!(host_of("consul.test:8501"), "consul.test");
}
