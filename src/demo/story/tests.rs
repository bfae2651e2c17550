use super::*;

const UNIT: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn story(seconds: u64) -> Story {
    let plan = Plan::new(UNIT, Duration::from_secs(seconds)).unwrap();
    Story::new(plan, 5, at(0))
}

const RETURN: Happening = Happening::Restored {
    out_for: Duration::from_secs(6),
    by_probe: true,
};

#[test]
fn a_duration_without_room_for_the_story_says_what_is_needed() {
    assert!(Plan::new(UNIT, Duration::from_secs(30)).is_ok());
    let error = Plan::new(UNIT, Duration::from_millis(29_999)).unwrap_err();
    assert!(error.to_string().contains("--duration 30s"), "{error}");
    assert!(error.to_string().contains("unit of 2s"), "{error}");
}

#[test]
fn longer_durations_show_more_failed_probes() {
    let failed = |seconds| story(seconds).plan.failed_probes;
    assert_eq!([failed(30), failed(37), failed(60)], [1, 2, 3]);
}

#[test]
fn each_act_waits_for_what_must_be_seen_first() {
    let mut story = story(30);
    assert_eq!(story.next(), Some((at(4000), Act::Break)));
    story.done(Act::Break, at(4000));
    assert_eq!(story.next(), Some((at(30_000), Act::End)));
    story.see(Part::Bad, Happening::Ejected { calls: 5 }, at(4400));
    story.see(Part::Bad, Happening::ProbeFailed { k: 2 }, at(6400));
    assert_eq!(story.next(), Some((at(7400), Act::Repair)));
    story.done(Act::Repair, at(7400));
    story.see(Part::Bad, RETURN, at(10_400));
    assert_eq!(story.next(), Some((at(12_800), Act::Silence)));
    story.done(Act::Silence, at(12_800));
    story.see(Part::Silent, Happening::Ejected { calls: 5 }, at(13_000));
    story.see(Part::Silent, Happening::Unhealthy, at(18_000));
    assert_eq!(
        story.findings().missing(),
        ["the eviction of the silent one"]
    );
    story.see(Part::Silent, Happening::Left, at(24_000));
    assert_eq!(story.findings().missing(), Vec::<&str>::new());
    assert_eq!(story.next(), Some((at(30_000), Act::End)));
    story.done(Act::End, at(30_000));
    assert_eq!(story.next(), None);
    let found = story.findings();
    assert_eq!(
        (found.most_out, found.all_out, found.unexpected),
        (1, false, 0)
    );
}

#[test]
fn a_return_counts_only_by_a_probe_and_after_the_repair() {
    let mut story = story(30);
    story.done(Act::Break, at(0));
    story.see(Part::Bad, Happening::Ejected { calls: 5 }, at(1));
    story.see(Part::Bad, RETURN, at(2));
    story.done(Act::Repair, at(3));
    let forced = Happening::Restored {
        out_for: UNIT,
        by_probe: false,
    };
    story.see(Part::Bad, forced, at(4));
    assert_eq!(story.findings().returned, None);
}

#[test]
fn ejections_out_of_turn_and_all_out_are_noticed() {
    let mut story = story(30);
    let ejected = Happening::Ejected { calls: 5 };
    for part in [Part::Bad, Part::Silent, Part::Good(0), Part::Good(1)] {
        story.see(part, ejected, at(1));
    }
    assert_eq!(story.findings().unexpected, 4);
    assert!(!story.findings().all_out);
    story.see(Part::Good(2), ejected, at(1));
    assert!(story.findings().all_out);
    assert_eq!(story.findings().most_out, 5);
}
