use super::*;

const HEADER: &str = r#"{"version": 2, "seed": 0, "policy": {"flap_memory": 0}}"#;
const TWO: &str =
    r#"{"t": 0, "event": "endpoints", "list": [{"address": "a:1"}, {"address": "b:1"}]}"#;
const FAILED: &str =
    r#"{"t": 5, "event": "outcome", "instance": "a:1", "class": "network_error", "sent_at": 4}"#;
const EJECTED: &str = r#"{"t": 5, "expect": "eject", "instance": "a:1", "k": 1, "calls": 10}"#;
const TICK: &str = r#"{"t": 60, "event": "tick"}"#;

fn trace(lines: &[&str]) -> String {
    let mut all = vec![HEADER, TWO];
    all.extend([FAILED; 10]);
    all.extend(lines);
    all.join("\n")
}

fn problem(text: &str) -> (usize, String) {
    let error = check(text).expect_err("no trace passes that should not");
    (error.line(), error.to_string())
}

#[test]
fn what_is_left_out_is_not_compared() {
    check(&trace(&[EJECTED, TICK])).unwrap();
    let with_note = EJECTED.replace("\"k\": 1", "\"note\": \"all failed\"");
    check(&trace(&[&with_note, TICK])).unwrap();
}

#[test]
fn differences_name_their_line() {
    let (line, text) = problem(&trace(&[&EJECTED.replace("\"k\": 1", "\"k\": 2"), TICK]));
    assert_eq!(line, 13);
    assert!(
        text.contains("\"k\": 2") && text.contains("\"k\":1"),
        "{text}"
    );
    // An effect that nobody expects, and an expectation that nothing fulfils.
    assert_eq!(problem(&trace(&[TICK])).0, 13);
    let (line, text) = problem(&trace(&[EJECTED, EJECTED, TICK]));
    assert!(line == 14 && text.ends_with("got nothing"), "{text}");
    assert_eq!(problem(&trace(&[])).0, 12);
}

#[test]
fn effects_are_printed_and_traces_rewritten() {
    let effects = effects(&trace(&[TICK])).unwrap();
    assert_eq!(effects.len(), 1);
    assert!(
        effects[0].starts_with(r#"{"t":5,"expect":"eject","instance":"a:1""#),
        "{effects:?}"
    );
    let rewritten = rewrite(&trace(&[TICK])).unwrap().join("\n");
    check(&rewritten).unwrap();
    assert_eq!(rewritten.lines().count(), 14);
}

#[test]
fn what_is_no_trace_says_why() {
    for (text, line, part) in [
        ("", 1, "header"),
        ("{}", 1, "version"),
        (r#"{"version": 2}"#, 1, "policy"),
        (r#"{"version": 2, "policy": {"mode": "maybe"}}"#, 1, "mode"),
    ] {
        let (at, problem) = problem(text);
        assert!(at == line && problem.contains(part), "{problem}");
    }
    for (text, part) in [
        ("nonsense", "JSON"),
        (r#"{"t": 1}"#, "event or an expectation"),
        (r#"{"t": 1, "event": "quake"}"#, "quake"),
        (r#"{"event": "tick"}"#, "`t`"),
        (
            r#"{"t": 1, "event": "check", "instance": "nowhere", "passing": true}"#,
            "port",
        ),
    ] {
        let (at, problem) = problem(&trace(&[text]));
        assert!(at == 13 && problem.contains(part), "{problem}");
    }
}
