//! Single transitions; histories are in `tests/histories.rs`.

use super::*;

const HERE: BootId = BootId(1);
const LATER: BootId = BootId(2);

fn good(other: Other) -> Slots {
    Slots::new(Slot::A, Standing::Good, other)
}

fn boot(slot: Slot, path: BootPath, id: BootId, default: Slot) -> Boot {
    Boot { slot: Some(slot), path, id, default: Some(default) }
}

#[test]
fn an_upgrade_names_the_default_writes_the_other_slot_and_starts_it_once() {
    let mut slots = good(Other::Good);
    let ops = slots.upgrade(Start::OneShot, HERE);
    assert_eq!(
        ops,
        [
            Op::Disarm,
            Op::Save(good(Other::Empty)),
            Op::SetDefault(Slot::A),
            Op::Write(Slot::B),
            Op::Save(good(Other::Trial(Trial::Prepared { by: HERE }))),
            Op::Arm(Slot::B),
            Op::Save(good(Other::Trial(Trial::Armed { by: HERE }))),
        ]
    );
    assert!(!slots.may_kexec());
    let Next::Judge(judge) = slots.boot(&boot(Slot::B, BootPath::Firmware, LATER, Slot::A)).next else {
        panic!("not judged")
    };
    assert_eq!(slots.other(), Other::Trial(Trial::Started { boot: LATER }));
    assert_eq!(slots.commit(&judge)[0], Op::SetDefault(Slot::B));
    assert_eq!(slots, Slots::new(Slot::B, Standing::Good, Other::Good));
    assert!(slots.may_kexec() && slots.is_good(Slot::A) && slots.is_good(Slot::B));
}

#[test]
fn a_slot_started_by_kexec_is_not_judged_but_started_again_by_the_boot_loader() {
    let mut slots = good(Other::Trial(Trial::Armed { by: HERE }));
    let decision = slots.boot(&boot(Slot::B, BootPath::Kexec, LATER, Slot::A));
    assert_eq!(decision.next, Next::Restart);
    assert!(decision.ops.contains(&Op::Arm(Slot::B)));
    let mut slots = good(Other::Trial(Trial::Armed { by: HERE }));
    assert_eq!(slots.boot(&boot(Slot::A, BootPath::Kexec, LATER, Slot::A)).next, Next::Restart);
    assert_eq!(slots.other(), Other::Trial(Trial::Armed { by: HERE }), "still to be started");
    let mut slots = Slots::install().0;
    assert_eq!(slots.boot(&boot(Slot::A, BootPath::Kexec, LATER, Slot::A)).next, Next::Run);
}

#[test]
fn a_trial_that_did_not_hold_is_a_failed_slot_after_the_next_boot() {
    for (trial, other) in [
        (Trial::Prepared { by: HERE }, Other::Untested),
        (Trial::Armed { by: HERE }, Other::Failed { failure: Failure::NeverCameUp, by: LATER }),
        (Trial::Started { boot: HERE }, Other::Failed { failure: Failure::EndedEarly, by: LATER }),
    ] {
        let mut slots = good(Other::Trial(trial));
        let decision = slots.boot(&boot(Slot::A, BootPath::Firmware, LATER, Slot::A));
        assert_eq!((decision.next, slots), (Next::Run, good(other)));
        assert!(decision.ops.contains(&Op::Disarm));
    }
}

#[test]
fn a_restart_of_machined_alone_changes_nothing() {
    let mut slots = good(Other::Trial(Trial::Armed { by: HERE }));
    let decision = slots.boot(&boot(Slot::A, BootPath::Firmware, HERE, Slot::A));
    assert_eq!(decision, Decision { ops: vec![Op::SetDefault(Slot::A)], next: Next::Run });
    let mut slots = good(Other::Trial(Trial::Started { boot: HERE }));
    let decision = slots.boot(&boot(Slot::B, BootPath::Firmware, HERE, Slot::A));
    assert_eq!(decision.ops, [Op::SetDefault(Slot::A)]);
    let Next::Judge(judge) = decision.next else { panic!("not judged any more") };
    assert_eq!(slots.fail(&judge).next, Next::Restart);
    let again = slots.boot(&boot(Slot::B, BootPath::Firmware, HERE, Slot::A));
    assert_eq!(again.next, Next::Restart, "given up, and still running");
}

#[test]
fn a_second_start_of_a_trial_ends_it_and_a_person_may_look_at_a_failed_slot() {
    let mut slots = good(Other::Trial(Trial::Started { boot: HERE }));
    assert_eq!(slots.boot(&boot(Slot::B, BootPath::Firmware, LATER, Slot::A)).next, Next::Restart);
    assert_eq!(slots.other(), Other::Failed { failure: Failure::StartedTwice, by: LATER });
    assert_eq!(slots.boot(&boot(Slot::B, BootPath::Firmware, BootId(3), Slot::A)).next, Next::Run);
}

#[test]
fn an_interrupted_commit_is_finished() {
    let mut slots = good(Other::Trial(Trial::Started { boot: HERE }));
    let decision = slots.boot(&boot(Slot::B, BootPath::Firmware, LATER, Slot::B));
    assert_eq!(decision.next, Next::Run);
    assert_eq!(slots, Slots::new(Slot::B, Standing::Good, Other::Good));
    assert_eq!(decision.ops, [Op::Save(slots), Op::SetDefault(Slot::B)]);
}

#[test]
fn a_default_that_nobody_of_ours_set_is_set_back() {
    for other in [Other::Empty, Other::Untested, Other::Failed { failure: Failure::Unhealthy, by: HERE }] {
        let mut slots = good(other);
        let decision = slots.boot(&boot(Slot::A, BootPath::Firmware, LATER, Slot::B));
        assert_eq!(decision.ops, [Op::SetDefault(Slot::A)]);
    }
    let mut slots = good(Other::Good);
    let lost = Boot { default: None, ..boot(Slot::A, BootPath::Firmware, LATER, Slot::A) };
    assert_eq!(slots.boot(&lost).ops, [Op::SetDefault(Slot::A)], "firmware that lost its variables");
}

#[test]
fn rollback_goes_to_what_was_good_and_to_nothing_else() {
    let mut slots = good(Other::Good);
    let ops = slots.rollback(HERE).unwrap();
    assert_eq!(ops, [Op::Disarm, Op::SetDefault(Slot::B), Op::Save(slots)]);
    assert_eq!(slots, Slots::new(Slot::B, Standing::Good, Other::Good));

    let mut slots = good(Other::Trial(Trial::Started { boot: HERE }));
    assert_eq!(slots.rollback(HERE).unwrap().len(), 2, "the default is the way back already");
    assert_eq!(slots, good(Other::Failed { failure: Failure::RolledBack, by: HERE }));

    for (other, words) in [
        (Other::Empty, "slot B is empty: there is no earlier system to roll back to"),
        (
            Other::Failed { failure: Failure::Unhealthy, by: HERE },
            "slot B failed its trial (it was not healthy within the deadline); the machine runs its last good system \
             already",
        ),
    ] {
        let before = good(other);
        let mut slots = before;
        assert_eq!(slots.rollback(HERE).unwrap_err().to_string(), words);
        assert_eq!(slots, before);
    }
    assert!(good(Other::Untested).rollback(HERE).is_err());

    let mut slots = good(Other::Unjudged);
    let ops = slots.rollback(HERE).unwrap();
    assert!(ops.contains(&Op::Arm(Slot::B)), "one that nobody knows is tried first");
    assert_eq!(slots, good(Other::Trial(Trial::Armed { by: HERE })));
}

#[test]
fn a_system_made_default_by_another_installer_is_put_on_trial_when_it_comes_up() {
    let mut slots = Slots::found(Slot::A, false);
    let ops = slots.upgrade(Start::Default, HERE);
    assert_eq!(ops[ops.len() - 2..], [Op::Save(slots), Op::SetDefault(Slot::B)]);
    assert!(!ops.contains(&Op::Arm(Slot::B)));

    let mut cold = slots;
    let decision = cold.boot(&boot(Slot::B, BootPath::Firmware, LATER, Slot::B));
    assert!(matches!(decision.next, Next::Judge(_)));
    assert!(decision.ops.contains(&Op::SetDefault(Slot::A)));
    assert_eq!(cold, good(Other::Trial(Trial::Started { boot: LATER })));

    let decision = slots.boot(&boot(Slot::B, BootPath::Kexec, LATER, Slot::B));
    assert_eq!(decision.next, Next::Restart);
    assert_eq!(slots, good(Other::Trial(Trial::Armed { by: LATER })));
}

#[test]
fn a_first_installation_is_watched_and_has_nowhere_to_go_back_to() {
    let (mut slots, ops) = Slots::install();
    assert_eq!(ops[1], Op::Write(Slot::A));
    let decision = slots.boot(&boot(Slot::A, BootPath::Firmware, LATER, Slot::A));
    let Next::Judge(judge) = decision.next else { panic!("not judged") };
    assert_eq!(slots.fail(&judge).next, Next::Run);
    assert!(!slots.is_good(Slot::A));
    slots.commit(&judge);
    assert!(slots.is_good(Slot::A));
    assert_eq!(slots.target(), Slot::B);
}

#[test]
fn kexec_is_told_by_the_type_of_the_boot_loader() {
    for (number, path) in [
        (Some(0xd0), BootPath::Kexec),
        (Some(0x72), BootPath::Firmware),
        (Some(0x21), BootPath::Firmware),
        (None, BootPath::Firmware),
    ] {
        assert_eq!(BootPath::from_bootloader_type(number), path);
    }
}
