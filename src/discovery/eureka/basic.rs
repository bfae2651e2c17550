//! HTTP Basic: a name and a password, which may stand in a file that is read again when it is refused.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use http::{HeaderValue, header};

use crate::config::types::{Eureka, Secret};
use crate::http_client::HttpClient;
use crate::http_client::auth::{Auth, Credential, Credentials};
use crate::http_client::servers::{CallError, Server};

/// One account.
#[derive(Debug)]
pub(super) struct Basic {
    username: String,
    password: Password,
    /// The last one read.
    current: Mutex<Option<HeaderValue>>,
}

#[derive(Debug)]
enum Password {
    Inline(Secret),
    File(PathBuf),
    None,
}

impl Basic {
    pub(super) fn new(config: &Eureka) -> Option<Self> {
        let password = match (&config.password_file, &config.password) {
            (Some(path), _) => Password::File(path.clone()),
            (None, Some(secret)) => Password::Inline(secret.clone()),
            (None, None) => Password::None,
        };
        Some(Self {
            username: config.username.clone()?,
            password,
            current: Mutex::new(None),
        })
    }

    async fn read(&self) -> Result<HeaderValue, CallError> {
        let password = match &self.password {
            Password::Inline(Secret(password)) => password.clone(),
            Password::None => String::new(),
            Password::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| {
                    CallError::Unanswered(format!("password {}: {error}", path.display()))
                })?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
        };
        let text = format!(
            "Basic {}",
            base64(format!("{}:{password}", self.username).as_bytes())
        );
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| CallError::Refused("the password cannot be sent".to_owned()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<HeaderValue>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Auth for Basic {
    fn credential<'a>(&'a self, _: &'a HttpClient, _: &'a Server) -> Credentials<'a> {
        Box::pin(async {
            let known = self.lock().clone();
            let value = match known {
                Some(value) => value,
                None => self.read().await?,
            };
            *self.lock() = Some(value.clone());
            Ok(Some((header::AUTHORIZATION, value)))
        })
    }

    fn denied(&self, used: &Credential) -> bool {
        let mut current = self.lock();
        let same = current.as_ref() == used.as_ref().map(|(_, value)| value);
        if same {
            // The file may hold a new one.
            *current = None;
        }
        matches!(self.password, Password::File(_))
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |group: u32, place: u32| {
        let index = usize::try_from(group >> (18 - 6 * place) & 63).unwrap_or(0);
        DIGITS.get(index).copied().map_or('=', char::from)
    };
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| chunk.get(n).copied().map_or(0, u32::from);
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        out.push(digit(group, 0));
        out.push(digit(group, 1));
        out.push(if chunk.len() > 1 {
            digit(group, 2)
        } else {
            '='
        });
        out.push(if chunk.len() > 2 {
            digit(group, 3)
        } else {
            '='
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_all_lengths() {
        for (text, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("Aladdin:open sesame", "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("\u{ff}\u{3ff}?", "w7/Pvz8="),
        ] {
            assert_eq!(base64(text.as_bytes()), want, "{text}");
        }
    }
}
