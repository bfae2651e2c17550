//! Placeholder until the detector branch is merged.
#![allow(missing_docs)]
use super::policy::{ExceptionType, Policy};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeClass { Success, NetworkError, BusinessError, Ignored }
impl OutcomeClass {
    pub const fn index(self) -> usize { self as usize }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind { ConnectRefused, ConnectTimeout, Tls, Reset, Protocol, AttemptTimeout, RequestTimeout, Idle, Truncated, Http5xx, GrpcStatus }
pub fn classify_http(status: u16, policy: &Policy) -> OutcomeClass {
    if policy.business_errors.http_ignore.contains(status) { return OutcomeClass::Success; }
    if let Some(set) = &policy.business_errors.http && set.contains(status) { return OutcomeClass::BusinessError; }
    match status { 502..=504 => OutcomeClass::NetworkError, 501 => OutcomeClass::Success, 500..=599 => OutcomeClass::BusinessError, _ => OutcomeClass::Success }
}
pub fn classify_grpc(code: u16, policy: &Policy) -> OutcomeClass { let _ = (code, policy); match code { 0 => OutcomeClass::Success, 14 | 4 => OutcomeClass::NetworkError, 2 | 8 | 13 | 15 => OutcomeClass::BusinessError, _ => OutcomeClass::Success } }
pub fn is_failure(class: OutcomeClass, t: ExceptionType) -> bool { match class { OutcomeClass::NetworkError => true, OutcomeClass::BusinessError => t == ExceptionType::NetworkAndBusiness, _ => false } }
