//! One request of the admin API as its handler sees it: names of the path, query, body, and who
//! signs for it.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::Deps;
use super::answer::Fault;
use super::routes::Names;
use crate::outlier::book::Signed;

/// Bytes of a request body.
const MAX_BODY: usize = 64 * 1024;
/// Characters of a note; an actor has a quarter of it.
const MAX_NOTE: usize = 256;
/// From the head to the end of the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that passed the guard and found its page.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) deps: Deps,
    pub(super) names: Names,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    /// Empty for reads.
    pub(super) body: Bytes,
    /// True when all ends; for answers that go on.
    pub(super) stop: watch::Receiver<bool>,
}

impl Call {
    /// A name of the path.
    pub(super) fn name(&self, name: &str) -> &str {
        let found = self.names.0.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    /// A header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The first value of a key of the query, unless it is empty.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.values(key).find(|value| !value.is_empty())
    }

    /// All values of a key of the query.
    pub(super) fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        let all = self.query.iter().filter(move |(k, _)| k == key);
        all.map(|(_, value)| value.as_str())
    }

    /// Who gives this order and why: from the body (`actor`, `note`), or for orders without one
    /// from the query.
    pub(super) fn signed(
        &self,
        actor: Option<String>,
        note: Option<String>,
    ) -> Result<Signed, Fault> {
        let of = |given: Option<String>, key: &str| {
            let given = given.or_else(|| self.value(key).map(str::to_owned));
            given
                .map(|text| text.trim().to_owned())
                .filter(|t| !t.is_empty())
        };
        let (actor, note) = (of(actor, "actor"), of(note, "note"));
        for (key, value, most) in [("actor", &actor, MAX_NOTE / 4), ("note", &note, MAX_NOTE)] {
            let Some(value) = value else { continue };
            if value.chars().count() > most || value.chars().any(char::is_control) {
                let message = format!("`{key}` is too long or more than one line");
                let hint = format!("one line of at most {most} characters");
                return Err(Fault::new(
                    StatusCode::BAD_REQUEST,
                    "bad_body",
                    message,
                    hint,
                ));
            }
        }
        let actor = actor.unwrap_or_else(|| "operator".to_owned());
        Ok(Signed { actor, note })
    }

    /// The body as a value; no body is an empty object.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let body = self.body.trim_ascii();
        let body = if body.is_empty() { b"{}" } else { body };
        serde_json::from_slice(body).map_err(|error| {
            let kind = match error.classify() {
                serde_json::error::Category::Data => "the body does not fit",
                serde_json::error::Category::Eof
                | serde_json::error::Category::Io
                | serde_json::error::Category::Syntax => "the body is no JSON",
            };
            Fault::new(
                StatusCode::BAD_REQUEST,
                "bad_body",
                format!("{kind}: {error}"),
                "send one JSON object; GET / lists what each page takes",
            )
        })
    }
}

/// The body of a write: JSON, bounded in bytes and time.
pub(super) async fn read_body<B>(head: &Parts, body: B) -> Result<Bytes, Fault>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    is_json(&head.headers)?;
    let too_large = || {
        let message = format!("the body is larger than {MAX_BODY} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Fault::new(
            status,
            "body_too_large",
            message,
            "an order is one small object",
        )
    };
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let whole = Limited::new(body, MAX_BODY).collect();
    match tokio::time::timeout(BODY_TIMEOUT, Box::pin(whole)).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Fault::new(
            StatusCode::BAD_REQUEST,
            "bad_body",
            format!("the body broke off: {error}"),
            "",
        )),
        Err(_) => Err(Fault::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body did not end within {BODY_TIMEOUT:?}"),
            "check content-length",
        )),
    }
}

fn is_json(headers: &HeaderMap) -> Result<(), Fault> {
    let given = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let given = given.unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = match given {
        "" => "the body has no content-type".to_owned(),
        other => format!("the body is called `{other}`"),
    };
    Err(Fault::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        message,
        "send JSON with `content-type: application/json`",
    ))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Request;
    use http_body_util::Full;
    use hyper::body::Frame;

    use super::*;

    async fn read(content_type: Option<&str>, body: Vec<u8>) -> Result<Bytes, (u16, String)> {
        let mut request = Request::post("/");
        if let Some(value) = content_type {
            request = request.header(CONTENT_TYPE, value);
        }
        let (head, body) = request
            .body(Full::new(Bytes::from(body)))
            .unwrap()
            .into_parts();
        let read = read_body(&head, body).await;
        read.map_err(|fault| (fault.status.as_u16(), fault.problem.message))
    }

    #[tokio::test]
    async fn a_body_is_json_and_small() {
        let code = |result: Result<Bytes, (u16, String)>| result.map_or_else(|e| e.0, |_| 200);
        assert_eq!(code(read(None, Vec::new()).await), 200);
        assert_eq!(code(read(None, b"{}".to_vec()).await), 415);
        assert_eq!(code(read(Some("text/plain"), b"{}".to_vec()).await), 415);
        let json = Some("Application/JSON; charset=utf-8");
        assert_eq!(code(read(json, b"{}".to_vec()).await), 200);
        assert_eq!(code(read(json, vec![b' '; MAX_BODY]).await), 200);
        assert_eq!(code(read(json, vec![b' '; MAX_BODY + 1]).await), 413);
    }

    /// A body of unknown length: without an end, or without anything.
    struct Unending(bool);

    impl Body for Unending {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match self.0 {
                true => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; 1024]))))),
                false => Poll::Pending,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_an_end_is_given_up() {
        let head = Request::post("/").header(CONTENT_TYPE, "application/json");
        let (head, ()) = head.body(()).unwrap().into_parts();
        let code = async |body| read_body(&head, body).await.unwrap_err().status.as_u16();
        assert_eq!(code(Unending(true)).await, 413);
        assert_eq!(code(Unending(false)).await, 408);
    }
}
