//! TLS towards registries: rustls with ring. The files are read for each connection, so that a
//! rotated certificate or authority is used by the next one; while they stay the same the settings
//! stay too. Without `ca_file` those authorities are trusted that the system trusts (its store, or
//! `SSL_CERT_FILE`), as by other programs on the machine: a company's own authority is there.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::HttpError;
use crate::config::types::RegistryTls;

/// How one registry is spoken to by TLS.
#[derive(Debug)]
pub struct TlsClient {
    settings: RegistryTls,
    /// What is spoken inside (ALPN).
    protocol: &'static [u8],
    current: Mutex<Option<(Files, Arc<ClientConfig>)>>,
}

/// What the files held.
#[derive(Default, PartialEq, Eq)]
struct Files {
    authorities: Option<Vec<u8>>,
    chain: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

impl TlsClient {
    /// Nothing is read before the first connection.
    pub fn new(settings: RegistryTls) -> Self {
        Self {
            settings,
            protocol: b"http/1.1",
            current: Mutex::default(),
        }
    }

    /// The same settings for a server that speaks HTTP/2.
    pub fn speaking_http2(&self) -> Arc<Self> {
        Arc::new(Self {
            settings: self.settings.clone(),
            protocol: b"h2",
            current: Mutex::default(),
        })
    }

    /// Whether `tls` is written: then servers without a scheme are spoken to by TLS.
    pub(super) fn enabled(&self) -> bool {
        self.settings.enabled
    }

    pub(super) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, HttpError> {
        let host = match &self.settings.server_name {
            Some(name) => name,
            None => host_of(address),
        };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| HttpError::Tls(format!("`{host}` is no name of a server")))?;
        let config = self.config().await.map_err(HttpError::Tls)?;
        let connecting = TlsConnector::from(config).connect(name, stream).await;
        connecting.map_err(|error| HttpError::Tls(error.to_string()))
    }

    async fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let files = Files {
            authorities: read(self.settings.ca_file.as_deref()).await?,
            chain: read(self.settings.cert_file.as_deref()).await?,
            key: read(self.settings.key_file.as_deref()).await?,
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, config)) = &*current
            && *known == files
        {
            return Ok(config.clone());
        }
        let config = Arc::new(build(&self.settings, &files, self.protocol)?);
        *current = Some((files, config.clone()));
        Ok(config)
    }
}

async fn read(path: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    let read = tokio::fs::read(path).await;
    read.map(Some)
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn build(settings: &RegistryTls, files: &Files, protocol: &[u8]) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let verifier: Arc<dyn ServerCertVerifier> = if settings.insecure {
        Arc::new(AnyCertificate(provider))
    } else {
        let roots = Arc::new(roots(settings, files.authorities.as_deref())?);
        WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| error.to_string())?
    };
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&files.chain, &files.key) {
        (Some(chain), Some(key)) => {
            let chain = certificates(settings.cert_file.as_deref(), chain)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| format!("{}: {error}", shown(settings.key_file.as_deref())))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("{}: {error}", shown(settings.cert_file.as_deref())))?
        }
        (Some(_) | None, Some(_) | None) => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn roots(settings: &RegistryTls, authorities: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = authorities {
        let path = settings.ca_file.as_deref();
        for certificate in certificates(path, pem)? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("{}: {error}", shown(path)))?;
        }
        return Ok(roots);
    }
    let system = rustls_native_certs::load_native_certs();
    // Some of hundreds may be ones that nobody can use.
    roots.add_parsable_certificates(system.certs);
    if roots.is_empty() {
        let why = system.errors.first().map(|error| format!(" ({error})"));
        return Err(format!(
            "this system trusts no authority{}: set `tls.ca_file`",
            why.unwrap_or_default()
        ));
    }
    Ok(roots)
}

fn certificates(path: Option<&Path>, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("{}: {error}", shown(path)))?;
    if found.is_empty() {
        return Err(format!("{} has no certificate in PEM form", shown(path)));
    }
    Ok(found)
}

fn shown(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}

/// The host of `host:port`, without the brackets of IPv6.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// `insecure: true`. The signature of the handshake is checked all the same.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
