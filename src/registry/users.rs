//! Who may come in, when `users_file` is configured: names with passwords, and tokens that a login
//! gives for a while. Without a file everybody may. The file is read again when it changes; a user who
//! is gone or has a new password loses his tokens. Nobody is let in when it could not be read twice in
//! a row: once may be an editor at work.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use tracing::{error, info, warn};

use super::guesses::Guesses;
use crate::clock::Timestamp;

/// How long a token lives.
pub(super) const TOKEN_LIFE: Duration = Duration::from_secs(18_000);
/// Tokens at most; beyond that the one that ends first goes.
const MAX_TOKENS: usize = 10_000;
/// Bytes of a users file.
const MAX_FILE: usize = 1024 * 1024;

/// What a caller shows; any of it is enough.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credentials<'a> {
    pub(super) token: Option<&'a str>,
    pub(super) username: Option<&'a str>,
    pub(super) password: Option<&'a str>,
}

/// Why somebody is not let in. The first words are those of Nacos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Denial {
    #[error("user not found! This registry has users: log in and send the token")]
    Nobody,
    #[error("user not found! Wrong user or password")]
    Password,
    #[error("too many wrong passwords from your address! Wait ten seconds")]
    TooMany,
    #[error("token invalid or expired! Log in again")]
    Token,
    #[error("the system gives no random numbers for a token")]
    NoRandom,
}

/// Users and tokens.
#[derive(Debug)]
pub(super) struct Users {
    path: Option<PathBuf>,
    book: Mutex<Book>,
}

/// The pure part.
#[derive(Default)]
struct Book {
    users: BTreeMap<String, Hash>,
    tokens: BTreeMap<String, (String, Timestamp)>,
    guesses: Guesses,
    /// Of the file as it was last read, good or bad.
    seen: Option<Hash>,
    /// The last reading was bad, and nothing was done about it yet.
    doubtful: bool,
}

type Hash = [u8; 32];

impl std::fmt::Debug for Book {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { users, tokens, .. } = self;
        write!(f, "{} users, {} tokens", users.len(), tokens.len())
    }
}

impl Users {
    /// Those of a file, which is read at once; `None`: everybody.
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        let users = Self {
            path,
            book: Mutex::default(),
        };
        if let Some(path) = &users.path {
            users.take(std::fs::read(path));
        }
        users
    }

    /// Whether logins are asked for.
    pub(super) fn required(&self) -> bool {
        self.path.is_some()
    }

    /// Reads the file again.
    pub(super) async fn refresh(&self) {
        if let Some(path) = &self.path {
            self.take(tokio::fs::read(path).await);
        }
    }

    /// Whether these are enough.
    pub(super) fn check(
        &self,
        shown: Credentials<'_>,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(), Denial> {
        if !self.required() {
            return Ok(());
        }
        let mut book = self.book();
        match shown {
            Credentials {
                token: Some(token), ..
            } => book.token(token, now),
            Credentials {
                username: Some(name),
                password,
                ..
            } => book.try_password(name, password.unwrap_or_default(), from, now),
            Credentials { .. } => Err(Denial::Nobody),
        }
    }

    /// A new token for a user.
    pub(super) fn log_in(
        &self,
        shown: Credentials<'_>,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<String, Denial> {
        let name = shown.username.ok_or(Denial::Password)?;
        let mut book = self.book();
        book.try_password(name, shown.password.unwrap_or_default(), from, now)?;
        let mut random = [0u8; 32];
        let filled = getrandom(&mut random[..], GetRandomFlags::empty());
        if filled.ok() != Some(random.len()) {
            return Err(Denial::NoRandom);
        }
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        book.issue(token.clone(), name, now);
        Ok(token)
    }

    /// Takes a file as it was read; what is wrong is told once per content.
    fn take(&self, read: std::io::Result<Vec<u8>>) {
        let path = self.path.clone().unwrap_or_default();
        let path = path.display();
        let read = read.map_err(|error| error.to_string());
        let seen: Hash = Sha256::digest(match &read {
            Ok(bytes) => bytes.as_slice(),
            Err(error) => error.as_bytes(),
        })
        .into();
        let mut book = self.book();
        let doubtful = std::mem::take(&mut book.doubtful);
        if book.seen == Some(seen) {
            return;
        }
        let users = read.and_then(|bytes| parse(&bytes));
        if users.is_err() && book.seen.is_some() && !doubtful {
            book.doubtful = true;
            return;
        }
        book.seen = Some(seen);
        match users {
            Ok(users) => {
                info!(%path, users = users.len(), "registry users read");
                book.replace(users);
            }
            Err(problem) => {
                error!(%path, problem, "registry users cannot be read: nobody is let in");
                book.replace(BTreeMap::new());
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn replace(&mut self, users: BTreeMap<String, Hash>) {
        let old = std::mem::replace(&mut self.users, users);
        let users = &self.users;
        self.tokens.retain(|_, (name, _)| {
            users
                .get(name)
                .is_some_and(|hash| old.get(name) == Some(hash))
        });
    }

    fn issue(&mut self, token: String, name: &str, now: Timestamp) {
        self.tokens.retain(|_, (_, until)| *until > now);
        if self.tokens.len() >= MAX_TOKENS
            && let Some((first, _)) = self.tokens.iter().min_by_key(|(_, (_, until))| *until)
        {
            let first = first.clone();
            self.tokens.remove(&first);
        }
        self.tokens
            .insert(token, (name.to_owned(), now + TOKEN_LIFE));
    }

    fn token(&self, token: &str, now: Timestamp) -> Result<(), Denial> {
        match self.tokens.get(token) {
            Some((_, until)) if *until > now => Ok(()),
            Some(_) | None => Err(Denial::Token),
        }
    }

    /// A password from an address that showed many wrong ones of late is not looked at; its tokens
    /// stay good. All callers over a Unix socket are one.
    fn try_password(
        &mut self,
        name: &str,
        password: &str,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(), Denial> {
        let from = from.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        if !self.guesses.may_try(from, now) {
            return Err(Denial::TooMany);
        }
        let checked = self.password(name, password);
        if checked.is_err() && self.guesses.wrong(from, now) {
            warn!(%from, "many wrong passwords for the registry: none is looked at for ten seconds");
        }
        checked
    }

    /// Compared by hashes, and for an unknown name too, so that time tells nothing.
    fn password(&self, name: &str, password: &str) -> Result<(), Denial> {
        let given = hash(name, password);
        let known = self.users.get(name).copied().unwrap_or_default();
        let differs = given.iter().zip(known).fold(0, |all, (a, b)| all | (a ^ b));
        if differs == 0 {
            Ok(())
        } else {
            Err(Denial::Password)
        }
    }
}

fn hash(name: &str, password: &str) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(name.as_bytes());
    hasher.update([0]);
    hasher.update(password.as_bytes());
    hasher.finalize().into()
}

/// Lines `NAME: PASSWORD`; empty lines and those that begin with `#` are left out. Blanks around both
/// are no part of them.
fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Hash>, String> {
    if bytes.len() > MAX_FILE {
        return Err(format!("larger than {MAX_FILE} bytes"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let mut users = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.split_once(':').map(|(n, p)| (n.trim(), p.trim()));
        let Some((name, password)) = pair.filter(|(n, p)| !n.is_empty() && !p.is_empty()) else {
            return Err(format!("line {number}: write `NAME: PASSWORD`"));
        };
        let hash = hash(name, password);
        if users.insert(name.to_owned(), hash).is_some() {
            return Err(format!("line {number}: `{name}` is there twice"));
        }
    }
    if users.is_empty() {
        return Err("no user in it: write a line `NAME: PASSWORD`".to_owned());
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn by_password<'a>(username: &'a str, password: &'a str) -> Credentials<'a> {
        Credentials {
            username: Some(username),
            password: Some(password),
            token: None,
        }
    }

    fn by_token(token: &str) -> Credentials<'_> {
        Credentials {
            token: Some(token),
            ..Credentials::default()
        }
    }

    #[test]
    fn everybody_may_without_a_file() {
        let users = Users::new(None);
        assert_eq!(users.check(Credentials::default(), None, at(0)), Ok(()));
    }

    #[test]
    fn a_token_or_a_password_is_needed_and_tokens_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "# people\n\nann: p:w \nbob:x\n").unwrap();
        let users = Users::new(Some(path.clone()));
        assert_eq!(
            users.check(Credentials::default(), None, at(0)),
            Err(Denial::Nobody)
        );
        assert_eq!(users.check(by_password("ann", "p:w"), None, at(0)), Ok(()));
        for (name, password) in [("ann", "x"), ("nobody", ""), ("", ""), ("ann", "")] {
            let shown = by_password(name, password);
            assert_eq!(
                users.check(shown, None, at(0)),
                Err(Denial::Password),
                "{name}"
            );
            assert_eq!(
                users.log_in(shown, None, at(0)),
                Err(Denial::Password),
                "{name}"
            );
        }
        let token = users
            .log_in(by_password("ann", "p:w"), None, at(0))
            .unwrap();
        let other = users.log_in(by_password("bob", "x"), None, at(0)).unwrap();
        assert!(token.len() == 64 && token != other);
        assert_eq!(users.check(by_token(&token), None, at(17_999)), Ok(()));
        assert_eq!(
            users.check(by_token(&token), None, at(18_000)),
            Err(Denial::Token)
        );
        assert_eq!(users.check(by_token("x"), None, at(0)), Err(Denial::Token));
        // A new password of one, the other stays.
        std::fs::write(&path, "ann: new\nbob: x\n").unwrap();
        users.take(std::fs::read(&path));
        assert_eq!(
            users.check(by_token(&token), None, at(1)),
            Err(Denial::Token)
        );
        assert_eq!(users.check(by_token(&other), None, at(1)), Ok(()));
        std::fs::remove_file(&path).unwrap();
        users.take(std::fs::read(&path));
        assert_eq!(users.check(by_token(&other), None, at(1)), Ok(()), "once");
        users.take(std::fs::read(&path));
        assert_eq!(
            users.check(by_token(&other), None, at(1)),
            Err(Denial::Token)
        );
    }

    #[test]
    fn guessing_ends_while_tokens_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "ann: right\n").unwrap();
        let users = Users::new(Some(path));
        let from = Some("10.0.0.9".parse().unwrap());
        let ann = by_password("ann", "right");
        let token = users.log_in(ann, from, at(0)).unwrap();
        for n in 0..10 {
            let guess = format!("{n}");
            let shown = by_password("ann", &guess);
            assert_eq!(users.log_in(shown, from, at(0)), Err(Denial::Password));
        }
        assert_eq!(users.check(ann, from, at(9)), Err(Denial::TooMany));
        assert_eq!(users.check(by_token(&token), from, at(9)), Ok(()));
        let elsewhere = Some("10.0.0.8".parse().unwrap());
        assert_eq!(users.check(ann, elsewhere, at(9)), Ok(()));
        assert_eq!(users.check(ann, from, at(10)), Ok(()));
    }

    #[test]
    fn tokens_are_bounded() {
        let mut book = Book::default();
        for n in 0..MAX_TOKENS + 5 {
            book.issue(format!("{n}"), "ann", at(n as u64));
        }
        assert_eq!(book.tokens.len(), MAX_TOKENS);
        assert!(book.token("4", at(0)).is_err() && book.token("5", at(0)).is_ok());
    }

    #[test]
    fn a_bad_file_tells_where() {
        for (text, want) in [
            ("", "no user in it"),
            ("ann", "line 1: write"),
            ("ann: x\nbob:\n", "line 2: write"),
            ("ann: x\n\nann: y\n", "line 3: `ann` is there twice"),
        ] {
            let problem = parse(text.as_bytes()).unwrap_err();
            assert!(problem.starts_with(want), "{problem}");
        }
        assert_eq!(parse(&[0xff]), Err("not UTF-8".to_owned()));
    }
}
