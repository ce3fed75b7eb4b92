//! What is evidence that the command of a dead scheduler is gone. A failed check is no evidence, either way.

use crate::host::guard_lock::GuardSeen;
use crate::host::platform::Hold;
use crate::host::process::Group;

/// Whether a command is still running, as far as it can be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Alive,
    /// No process of it is left, or a user has declared it gone, or it is the command of another database.
    Gone,
    /// As [`Presence::Gone`], and nothing shows that it ever ran: there is no record and no input file.
    NoTrace,
    /// Its process group is empty. A process that left the group holds its input, and is no longer part of the run.
    LeftGroup,
    /// Unknown; with the reason.
    Unknown(String),
}

/// What the end of its scheduler says about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerEnd {
    /// Nothing.
    Plain,
    /// It died a short time ago: its guard may be about to write that the command is gone.
    Recent,
    /// The scheduler was process 1 of its PID namespace, and the kernel has had the time to end all processes of the namespace with it.
    EndedNamespace,
}

/// Decides the presence of a command. `group`: `None` if nothing was recorded; without an input file there was no command then. `input`:
/// the lock of its input file. `guard` and `end` count only where the group cannot be read completely.
pub(crate) fn judge(group: Option<&Group>, input: Hold, guard: GuardSeen, end: OwnerEnd) -> Presence {
    let unreadable = match group {
        Some(Group::Unreadable(_)) if guard == GuardSeen::SawGone => return judge_empty(input),
        Some(Group::Unreadable(reason)) => reason,
        Some(Group::Empty) => return judge_empty(input),
        Some(Group::Led | Group::Leaderless(_)) => return Presence::Alive,
        Some(Group::OtherBoot) if input == Hold::Held => return Presence::Alive,
        // The input file may not have reached the disk before a power failure.
        Some(Group::OtherBoot) => return Presence::Gone,
        None if input == Hold::Missing => return Presence::NoTrace,
        None => "its process is not recorded",
    };
    let unknown = |what: &str| Presence::Unknown(format!("{what}, and {unreadable}"));
    match (input, guard, end) {
        (Hold::Held, ..) => Presence::Alive,
        (Hold::Missing, ..) => unknown("its input file is missing"),
        (Hold::Unknown(reason), ..) => Presence::Unknown(reason),
        (Hold::Free, GuardSeen::NoGuard | GuardSeen::Free | GuardSeen::SawGone, _) => Presence::Gone,
        (Hold::Free, GuardSeen::Held, OwnerEnd::Recent) => Presence::Alive,
        (Hold::Free, _, OwnerEnd::EndedNamespace) => Presence::Gone,
        (Hold::Free, GuardSeen::Held, _) => unknown("the guard of its scheduler waits for it"),
        (Hold::Free, GuardSeen::Missing, _) => unknown("the lock file of the guard of its scheduler is missing"),
        (Hold::Free, GuardSeen::Unknown(reason), _) => unknown(&reason),
    }
}

/// Decides the presence of a command whose group is known to be empty.
fn judge_empty(input: Hold) -> Presence {
    match input {
        Hold::Held => Presence::LeftGroup,
        Hold::Free | Hold::Missing => Presence::Gone,
        Hold::Unknown(reason) => Presence::Unknown(reason),
    }
}

#[cfg(test)]
mod tests {
    use crate::host::evidence::Presence::{self, Alive, Gone, LeftGroup, NoTrace};
    use crate::host::evidence::{OwnerEnd, judge};
    use crate::host::guard_lock::GuardSeen;
    use crate::host::platform::Hold;
    use crate::host::process::Group;

    const ENDS: [OwnerEnd; 3] = [OwnerEnd::Plain, OwnerEnd::Recent, OwnerEnd::EndedNamespace];

    fn guards() -> [GuardSeen; 6] {
        let failed = GuardSeen::Unknown("no lock is left".to_owned());
        [GuardSeen::NoGuard, GuardSeen::SawGone, GuardSeen::Free, GuardSeen::Held, GuardSeen::Missing, failed]
    }

    fn inputs() -> [Hold; 4] {
        [Hold::Held, Hold::Free, Hold::Missing, Hold::Unknown("no descriptor is left".to_owned())]
    }

    fn unknown(reason: &str) -> Presence {
        Presence::Unknown(reason.to_owned())
    }

    #[test]
    fn where_the_group_is_known_guard_and_namespace_do_not_count() {
        let failed = || unknown("no descriptor is left");
        let members = || Group::Leaderless(vec![7]);
        // Input: held, free, missing, an error.
        for (group, expected) in [
            (Group::Led, [Alive, Alive, Alive, Alive]),
            (members(), [Alive, Alive, Alive, Alive]),
            (Group::Empty, [LeftGroup, Gone, Gone, failed()]),
            (Group::OtherBoot, [Alive, Gone, Gone, Gone]),
        ] {
            for (input, expected) in inputs().into_iter().zip(expected) {
                for (guard, end) in guards().into_iter().flat_map(|guard| ENDS.map(|end| (guard.clone(), end))) {
                    let found = judge(Some(&group), input.clone(), guard.clone(), end);
                    assert_eq!(found, expected, "{group:?}, {input:?}, {guard:?}, {end:?}");
                }
            }
        }
    }

    #[test]
    fn where_the_group_cannot_be_read_a_free_input_counts_with_one_of_five_more() {
        let group = Group::Unreadable("it is hidden".to_owned());
        let failed = || unknown("no descriptor is left");
        let doubt = |what: &str| unknown(&format!("{what}, and it is hidden"));
        let missing = || doubt("its input file is missing");
        let (waits, no_file) =
            ("the guard of its scheduler waits for it", "the lock file of the guard of its scheduler is missing");
        for end in ENDS {
            let unless_ended = |what: &str| if end == OwnerEnd::EndedNamespace { Gone } else { doubt(what) };
            // Input: held, free, missing, an error.
            let expected = [
                [Alive, Gone, missing(), failed()],
                [LeftGroup, Gone, Gone, failed()],
                [Alive, Gone, missing(), failed()],
                [Alive, if end == OwnerEnd::Recent { Alive } else { unless_ended(waits) }, missing(), failed()],
                [Alive, unless_ended(no_file), missing(), failed()],
                [Alive, unless_ended("no lock is left"), missing(), failed()],
            ];
            for (guard, row) in guards().into_iter().zip(expected) {
                for (input, expected) in inputs().into_iter().zip(row) {
                    let found = judge(Some(&group), input.clone(), guard.clone(), end);
                    assert_eq!(found, expected, "{input:?}, {guard:?}, {end:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_recorded_may_be_known_to_the_guard_and_without_an_input_there_was_nothing() {
        let failed = || unknown("no descriptor is left");
        let doubt = |what: &str| unknown(&format!("{what}, and its process is not recorded"));
        let waits = || doubt("the guard of its scheduler waits for it");
        for (guard, plain, recent) in [
            (GuardSeen::NoGuard, Gone, Gone),
            (GuardSeen::SawGone, Gone, Gone),
            (GuardSeen::Free, Gone, Gone),
            (GuardSeen::Held, waits(), Alive),
            (
                GuardSeen::Unknown("it cannot be read".to_owned()),
                doubt("it cannot be read"),
                doubt("it cannot be read"),
            ),
        ] {
            for (end, of_free) in [(OwnerEnd::Plain, plain), (OwnerEnd::Recent, recent)] {
                for (input, expected) in inputs().into_iter().zip([Alive, of_free, NoTrace, failed()]) {
                    assert_eq!(
                        judge(None, input.clone(), guard.clone(), end),
                        expected,
                        "{input:?}, {guard:?}, {end:?}"
                    );
                }
            }
        }
    }
}
