use super::*;

fn problems(text: &str) -> Vec<String> {
    parse(text.as_bytes(), "t.yaml")
        .1
        .iter()
        .map(Diagnostic::line)
        .collect()
}

#[test]
fn knows_the_place_of_keys_and_values() {
    let (root, problems) = parse(b"a:\n  b: [1, 'x']\n", "t.yaml");
    assert!(problems.is_empty());
    let list = root.get("a").and_then(|a| a.get("b")).unwrap();
    let Value::Sequence(items) = &list.value else {
        panic!("{list:?}")
    };
    assert_eq!(items[1].place.to_string(), "t.yaml:2:10");
    assert!(matches!(&items[1].value, Value::Scalar(s) if s.text == "x"));
}

#[test]
fn duplicate_keys_are_found_at_any_depth() {
    let found = problems("a: 1\nb: {c: 1, c: 2}\na: 2\n");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("t.yaml:2:11: [E-CFG-007] key `c` stands twice"),
        "{found:?}"
    );
}

#[test]
fn an_unquoted_variable_in_a_flow_map_says_quote_it() {
    for text in [
        "a: {b: ${X}}\n",
        "a: [${X:-y}]\n",
        "a: [x,\n  ${X}]\n",
        "m: {v: '${A}', b: ${X}}\n",
    ] {
        let found = problems(text);
        assert!(found[0].contains("quote it"), "{text}: {found:?}");
    }
    assert!(problems("a: ${X:?set X}\nb: {c: \"${X}\"}\n").is_empty());
}

#[test]
fn hostile_input_ends_soon() {
    let big = 900 * 1024;
    for text in [
        "[".repeat(big),
        "{a: ".repeat(big / 4),
        "- ".repeat(big / 2),
        "? ".repeat(big / 2),
        "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n".to_owned()
            + &(b'c'..=b'z')
                .map(|c| (char::from(c - 1), char::from(c)))
                .map(|(p, c)| format!("{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n"))
                .collect::<String>(),
        "a: &a [*a]\n".to_owned(),
        "\"".to_owned() + &"x".repeat(big),
        "a\0b".to_owned(),
        "--- a\n--- b\n".to_owned(),
        "a: !!python/object x\n".to_owned(),
        "k: |\n".to_owned() + &"  text\n".repeat(big / 8) + "? [",
    ] {
        assert!(
            !problems(&text).is_empty(),
            "{}",
            text.chars().take(40).collect::<String>()
        );
    }
    assert!(problems(&"a".repeat(MAX_BYTES + 1))[0].contains("E-CFG-003"));
    assert!(
        parse(b"a: \xff\xfe", "t")
            .1
            .iter()
            .any(|d| d.line().contains("t:1:4: [E-CFG-002]"))
    );
    assert!(parse(b"\xef\xbb\xbfa: 1\n", "t").1.is_empty());
}
