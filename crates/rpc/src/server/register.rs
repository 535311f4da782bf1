//! Who is in the house, and who has to go when it is full.
//!
//! A server that only counts can be filled by one peer that does nothing. Here a newcomer takes the place of
//! the one that matters least: first those that were never served, then those of the address that holds the most
//! places, then the oldest. Running calls keep a place, unless the server grants each address a share and theirs
//! holds more.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::activity::Activity;

/// The places of one kind, handshakes or connections.
#[derive(Clone, Default)]
pub(super) struct Register(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    next: u64,
    taken: HashMap<u64, Place>,
}

struct Place {
    address: Option<IpAddr>,
    /// None while nothing is known of the peer: nothing is lost with it.
    activity: Option<Arc<Activity>>,
    leave: CancellationToken,
}

/// A place, given back when it is dropped.
pub(super) struct Ticket {
    register: Register,
    number: u64,
    leave: CancellationToken,
}

impl Register {
    /// Takes a place. With `most` of them taken, somebody else is asked to leave; places of an address beyond `share`
    /// also with running calls.
    pub(super) fn enter(
        &self,
        address: Option<IpAddr>,
        activity: Option<Arc<Activity>>,
        most: usize,
        share: Option<usize>,
    ) -> Ticket {
        let leave = CancellationToken::new();
        let mut places = self.places();
        if places.taken.len() >= most
            && let Some(victim) = places.least(share)
            && let Some(place) = places.taken.remove(&victim)
        {
            place.leave.cancel();
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, Place { address, activity, leave: leave.clone() });
        Ticket { register: self.clone(), number, leave }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The place that matters least, if any may be taken away.
    fn least(&self, share: Option<usize>) -> Option<u64> {
        let mut crowd: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for place in self.taken.values() {
            *crowd.entry(place.address).or_default() += 1;
        }
        let crowd = |place: &Place| crowd.get(&place.address).copied().unwrap_or_default();
        let is_running = |place: &Place| place.activity.as_ref().is_some_and(|activity| !activity.is_quiet());
        let beyond_share =
            |place: &Place| place.address.is_some() && share.is_some_and(|share| crowd(place) > share);
        self.taken
            .iter()
            .filter(|(_, place)| !is_running(place) || beyond_share(place))
            .min_by_key(|(number, place)| {
                let served = place.activity.as_ref().is_some_and(|activity| activity.was_served());
                (is_running(place), served, std::cmp::Reverse(crowd(place)), **number)
            })
            .map(|(number, _)| *number)
    }
}

impl Ticket {
    /// Resolves when the place is wanted for somebody else.
    pub(super) async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// Runs `work` for as long as the place is ours.
    pub(super) async fn hold<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.left() => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many at once")),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.register.places().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn the_oldest_of_the_largest_crowd_goes() {
        let register = Register::default();
        let lone = register.enter(address(1), None, 4, None);
        let crowd: Vec<_> = (0..3).map(|_| register.enter(address(2), None, 4, None)).collect();
        let newcomer = register.enter(address(3), None, 4, None);
        let gone: Vec<_> = crowd.iter().map(|ticket| ticket.leave.is_cancelled()).collect();
        assert_eq!(gone, [true, false, false]);
        assert!(!lone.leave.is_cancelled() && !newcomer.leave.is_cancelled());
    }

    #[test]
    fn running_calls_keep_their_place_and_used_connections_go_last() {
        let register = Register::default();
        let activities: Vec<_> = (0..3).map(|_| Arc::new(Activity::default())).collect();
        let _running = activities[0].enter();
        drop(activities[1].enter());
        activities[1].serve();
        let tickets: Vec<_> = activities
            .iter()
            .map(|activity| register.enter(address(1), Some(activity.clone()), 3, None))
            .collect();
        let gone = || tickets.iter().map(|ticket| ticket.leave.is_cancelled()).collect::<Vec<_>>();
        let busy = Arc::new(Activity::default());
        let _busy = busy.enter();
        let _first = register.enter(address(1), Some(busy.clone()), 3, None);
        assert_eq!(gone(), [false, false, true], "the one that never called");
        let _second = register.enter(address(1), Some(busy.clone()), 3, None);
        assert_eq!(gone(), [false, true, true], "the one that called before");
        let _third = register.enter(address(1), Some(busy.clone()), 3, None);
        assert_eq!(gone(), [false, true, true], "nobody who is being served");
    }

    #[test]
    fn calls_that_were_refused_do_not_outlive_a_newcomer() {
        let register = Register::default();
        let refused: Vec<_> = (0..3).map(|_| Arc::new(Activity::default())).collect();
        let strangers: Vec<_> = refused
            .iter()
            .map(|activity| register.enter(address(1), Some(activity.clone()), 4, None))
            .collect();
        refused.iter().for_each(|activity| drop(activity.enter()));
        let joins = register.enter(address(2), Some(Arc::default()), 4, None);
        let _more = register.enter(address(1), Some(Arc::default()), 4, None);
        assert!(!joins.leave.is_cancelled(), "it has had no time to call yet");
        assert!(strangers[0].leave.is_cancelled());
    }

    #[test]
    fn running_calls_of_an_address_beyond_its_share_give_way() {
        let register = Register::default();
        let busy = Arc::new(Activity::default());
        let _call = busy.enter();
        let lone = register.enter(address(1), Some(busy.clone()), 4, Some(2));
        let crowd: Vec<_> =
            (0..3).map(|_| register.enter(address(2), Some(busy.clone()), 4, Some(2))).collect();
        let gone = || crowd.iter().map(|ticket| ticket.leave.is_cancelled()).collect::<Vec<_>>();
        let _first = register.enter(address(3), Some(busy.clone()), 4, Some(2));
        assert_eq!(gone(), [true, false, false]);
        let _second = register.enter(address(3), Some(busy.clone()), 4, Some(2));
        assert_eq!(gone(), [true, false, false], "nobody holds more than a share");
        assert!(!lone.leave.is_cancelled());
    }

    #[test]
    fn a_place_is_free_again_when_its_ticket_is_gone() {
        let register = Register::default();
        drop(register.enter(address(1), None, 1, None));
        let first = register.enter(address(1), None, 1, None);
        assert!(!first.leave.is_cancelled());
        assert_eq!(register.places().taken.len(), 1);
    }
}
