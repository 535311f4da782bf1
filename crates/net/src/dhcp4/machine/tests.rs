//! The client against a server of a few lines, with a clock of the test's.

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A server that answers the message of an action.
fn answer(action: &Action, kind: Kind) -> Message {
    let (Action::Broadcast(message) | Action::Unicast(message, _)) = action else {
        panic!("not a message: {action:?}")
    };
    let mut reply = Message::request(kind, message.transaction, MAC);
    reply.is_reply = true;
    reply.your = Ipv4Addr::new(10, 5, 0, 9);
    for (number, value) in [
        (option::SUBNET_MASK, vec![255, 255, 255, 0]),
        (option::SERVER_ID, vec![10, 5, 0, 1]),
        (option::LEASE_TIME, 800_u32.to_be_bytes().to_vec()),
    ] {
        reply.options.insert(number, value);
    }
    reply
}

fn bound() -> Machine {
    let mut machine = Machine::new(Config::new(MAC, 42));
    let discover = machine.tick(at(0));
    let request = machine.receive(&answer(&discover[0], Kind::Offer), at(0));
    let done = machine.receive(&answer(&request[0], Kind::Ack), at(0));
    assert!(matches!(&done[..], [Action::Bound(_)]), "{done:?}");
    machine
}

fn kind_of(action: &Action) -> &'static str {
    match action {
        Action::Broadcast(m) => match m.kind() {
            Some(Kind::Discover) => "discover",
            Some(Kind::Request) => "broadcast request",
            _ => "?",
        },
        Action::Unicast(..) => "unicast request",
        Action::Bound(_) => "bound",
        Action::Lost => "lost",
        Action::Silent(_) => "silent",
    }
}

#[test]
fn a_lease_takes_four_messages_and_no_waiting() {
    let machine = bound();
    assert_eq!(machine.deadline(), at(400));
}

#[test]
fn without_answers_the_pauses_grow_to_a_bound() {
    let mut machine = Machine::new(Config::new(MAC, 42));
    let mut now = Duration::ZERO;
    let (mut pauses, mut told) = (Vec::new(), 0);
    for _ in 0..9 {
        let actions = machine.tick(now);
        assert_eq!(kind_of(actions.last().unwrap()), "discover");
        told += actions.iter().filter(|a| kind_of(a) == "silent").count();
        pauses.push((machine.deadline() - now).as_millis() / 100 * 100);
        now = machine.deadline();
    }
    assert!(pauses.windows(2).all(|p| p[0] <= p[1] + 1600), "{pauses:?}");
    assert!(pauses[0] < 600 && *pauses.last().unwrap() >= 16_000, "{pauses:?}");
    assert!(*pauses.last().unwrap() <= 17_600, "{pauses:?}");
    assert_eq!(told, 1, "a silence is told once");
}

#[test]
fn a_silent_server_is_asked_by_unicast_then_everyone_then_the_lease_is_lost() {
    let mut machine = bound();
    let mut seen: Vec<(u64, &str)> = Vec::new();
    for _ in 0..100 {
        let now = machine.deadline();
        let actions = machine.tick(now);
        seen.extend(actions.iter().map(|a| (now.as_secs(), kind_of(a))));
        if actions.contains(&Action::Lost) {
            break;
        }
    }
    assert_eq!(seen.first(), Some(&(400, "unicast request")));
    assert!(seen.contains(&(700, "broadcast request")), "{seen:?}");
    assert_eq!(seen[seen.len() - 2..], [(800, "lost"), (800, "discover")]);
    assert!(seen.len() < 30, "{seen:?}");
}

#[test]
fn a_renewed_lease_counts_from_its_renewal() {
    let mut machine = bound();
    let renew = machine.tick(at(400));
    let done = machine.receive(&answer(&renew[0], Kind::Ack), at(401));
    assert!(matches!(&done[..], [Action::Bound(_)]));
    assert_eq!(machine.deadline(), at(801));
}

#[test]
fn a_refused_renewal_loses_the_lease_and_starts_over_after_a_pause() {
    let mut machine = bound();
    let renew = machine.tick(at(400));
    assert_eq!(machine.receive(&answer(&renew[0], Kind::Nak), at(401)), [Action::Lost]);
    assert!(machine.tick(at(401)).is_empty());
    let Action::Broadcast(discover) = &machine.tick(at(402))[0] else { panic!() };
    assert!(!discover.options.contains_key(&option::REQUESTED_ADDRESS));
}

#[test]
fn after_expiry_the_old_address_is_asked_for() {
    let mut machine = bound();
    let actions = machine.tick(at(800));
    let Action::Broadcast(discover) = &actions[1] else { panic!() };
    assert_eq!(discover.address(option::REQUESTED_ADDRESS), Some(Ipv4Addr::new(10, 5, 0, 9)));
}

#[test]
fn answers_for_others_are_ignored() {
    let mut machine = Machine::new(Config::new(MAC, 42));
    let discover = machine.tick(at(0));
    let good = answer(&discover[0], Kind::Offer);
    for spoil in [
        |m: &mut Message| m.transaction ^= 1,
        |m: &mut Message| m.hardware[5] ^= 1,
        |m: &mut Message| m.is_reply = false,
        |m: &mut Message| m.your = Ipv4Addr::UNSPECIFIED,
        |m: &mut Message| drop(m.options.remove(&option::SERVER_ID)),
        |m: &mut Message| drop(m.options.insert(option::MESSAGE_TYPE, vec![5])),
    ] {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert_eq!(machine.receive(&bad, at(0)), []);
    }
    assert_eq!(machine.receive(&good, at(0)).len(), 1);
}

#[test]
fn an_offer_nobody_honours_is_given_up() {
    let mut machine = Machine::new(Config::new(MAC, 42));
    let discover = machine.tick(at(0));
    machine.receive(&answer(&discover[0], Kind::Offer), at(0));
    let kinds: Vec<_> = (0..4).map(|_| kind_of(&machine.tick(machine.deadline())[0])).collect();
    assert_eq!(kinds, ["broadcast request", "broadcast request", "broadcast request", "discover"]);
}

#[test]
fn a_name_is_told_or_asked_for_but_not_both() {
    let mut machine = bound();
    machine.set_hostname(Some(("node-1".into(), String::new())), at(10));
    let Action::Unicast(renew, _) = &machine.tick(at(10))[0] else { panic!() };
    assert_eq!(renew.text(option::HOSTNAME).as_deref(), Some("node-1"));
    assert!(!renew.options[&option::PARAMETER_LIST].contains(&option::HOSTNAME));
}

#[test]
fn an_address_that_a_neighbour_has_is_given_back() {
    let mut machine = bound();
    let actions = machine.decline([2, 0, 0, 0, 0, 9], at(1));
    let [Action::Broadcast(decline), Action::Lost, Action::Silent(text)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(decline.kind(), Some(Kind::Decline));
    assert_eq!(decline.address(option::REQUESTED_ADDRESS), Some(Ipv4Addr::new(10, 5, 0, 9)));
    assert_eq!(text, "the server offers 10.5.0.9, which 02:00:00:00:00:09 has already");
    assert!(machine.tick(at(10)).is_empty());
    let Action::Broadcast(discover) = &machine.tick(at(11))[0] else { panic!() };
    assert!(!discover.options.contains_key(&option::REQUESTED_ADDRESS));
    assert_eq!(machine.decline([0; 6], at(11)), []);
}

#[test]
fn a_kept_lease_is_taken_up_with_the_time_that_is_left() {
    let answer = bound().answer().unwrap().clone();
    let mut machine = Machine::new(Config::new(MAC, 7));
    let lease = machine.resume(&answer, at(100)).unwrap();
    assert_eq!((lease.duration, machine.deadline()), (at(700), at(0)));
    let confirm = machine.tick(at(0));
    assert_eq!((kind_of(&confirm[0]), machine.deadline()), ("broadcast request", at(300)));
    assert_eq!(kind_of(&machine.tick(at(300))[0]), "unicast request");
    let mut moved = Machine::new(Config::new(MAC, 7));
    moved.resume(&answer, at(100)).unwrap();
    let confirm = moved.tick(at(0));
    assert_eq!(moved.receive(&self::answer(&confirm[0], Kind::Nak), at(0)), [Action::Lost]);
    assert_eq!(Machine::new(Config::new(MAC, 7)).resume(&answer, at(800)), None);
    assert_eq!(Machine::new(Config::new([9; 6], 7)).resume(&answer, at(1)), None);
}
