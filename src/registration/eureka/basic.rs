//! Basic authentication at Eureka. The file with the password is read at each request, so that a new
//! one is used at once.

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, header};

use crate::config::types::{Eureka, Secret};
use crate::http_client::HttpClient;
use crate::http_client::auth::{Auth, Credential, Credentials};
use crate::http_client::servers::{CallError, Server};

#[derive(Debug)]
struct Basic {
    username: String,
    password_file: Option<PathBuf>,
    password: Option<Secret>,
}

/// `None` where no user is configured.
pub(in super::super) fn auth(config: &Eureka) -> Option<Arc<dyn Auth>> {
    let username = config.username.clone().filter(|name| !name.is_empty())?;
    Some(Arc::new(Basic {
        username,
        password_file: config.password_file.clone(),
        password: config.password.clone(),
    }))
}

impl Basic {
    async fn header(&self) -> Result<Credential, CallError> {
        let password = match (&self.password_file, &self.password) {
            (Some(path), _) => {
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| {
                    CallError::Unanswered(format!("password {}: {error}", path.display()))
                })?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            (None, Some(secret)) => secret.0.clone(),
            (None, None) => String::new(),
        };
        let text = base64(format!("{}:{password}", self.username).as_bytes());
        let value = HeaderValue::from_str(&format!("Basic {text}"));
        let mut value = value.map_err(|error| CallError::Refused(error.to_string()))?;
        value.set_sensitive(true);
        Ok(Some((header::AUTHORIZATION, value)))
    }
}

impl Auth for Basic {
    fn credential<'a>(&'a self, _: &'a HttpClient, _: &'a Server) -> Credentials<'a> {
        Box::pin(self.header())
    }

    fn denied(&self, _: &Credential) -> bool {
        // The next request reads the file again anyway.
        false
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let sextet = usize::try_from(group >> (18 - 6 * n) & 63).unwrap_or_default();
            let letter = ALPHABET.get(sextet).copied().unwrap_or(b'=');
            text.push(if n <= chunk.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn the_vectors_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
