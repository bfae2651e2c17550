//! The three reads of Eureka, by whichever server works.

use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::wire::{self, Applications, Choice};
use crate::discovery::subscription::Failure;
use crate::http_client::servers::{Answered, Call, Servers, Verdict};

/// What a segment of a path may have as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// What a delta read came to.
#[derive(Debug)]
pub(super) enum Delta {
    /// Of this server.
    Changes(Applications, usize),
    /// The server gives none.
    None,
}

/// Eureka as a client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) servers: Servers,
    pub(super) choice: Choice,
}

impl Client {
    /// All applications, and the server they came from.
    pub(super) async fn all(&self) -> Result<(Applications, usize), Failure> {
        let answered = self.get("/apps".to_owned(), &[StatusCode::OK]).await?;
        let all = wire::applications(answered.response.body(), self.choice);
        all.map(|all| (all, answered.server))
            .map_err(Failure::Unanswered)
    }

    pub(super) async fn delta(&self) -> Result<Delta, Failure> {
        let taken = [StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND];
        let answered = self.get("/apps/delta".to_owned(), &taken).await?;
        let body = answered.response.body();
        if answered.response.status() != StatusCode::OK || body.is_empty() {
            return Ok(Delta::None);
        }
        wire::applications(body, self.choice)
            .map(|delta| Delta::Changes(delta, answered.server))
            .map_err(Failure::Unanswered)
    }

    /// One application. An unknown one is empty: Eureka does not tell the one from the other.
    pub(super) async fn application(&self, name: &str) -> Result<Applications, Failure> {
        let name = name.to_ascii_uppercase();
        let path = format!("/apps/{}", utf8_percent_encode(&name, SEGMENT));
        let taken = [StatusCode::OK, StatusCode::NOT_FOUND];
        let answered = self.get(path, &taken).await?;
        if answered.response.status() == StatusCode::NOT_FOUND {
            return Ok(Applications::default());
        }
        wire::application(answered.response.body(), self.choice).map_err(Failure::Unanswered)
    }

    async fn get(&self, path: String, taken: &[StatusCode]) -> Result<Answered, Failure> {
        let mut call = Call::new(Method::GET, path);
        let accept = HeaderName::from_static("x-eureka-accept");
        call.headers = vec![
            // Without it the answer is XML.
            (header::ACCEPT, HeaderValue::from_static("application/json")),
            (header::ACCEPT_ENCODING, HeaderValue::from_static("gzip")),
            (accept, HeaderValue::from_static("full")),
        ];
        let judge = |answer: &Response<bytes::Bytes>| {
            if taken.contains(&answer.status()) {
                Verdict::Take
            } else {
                Verdict::Next
            }
        };
        Ok(self.servers.ask(&call, judge).await?)
    }
}
