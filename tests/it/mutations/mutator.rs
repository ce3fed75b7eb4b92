//! Loops over cases with a seed each, and a mutator that draws from the seed. The program's own tests share this file.

use fastrand::Rng;

use crate::waits::patience;

/// Characters that mean something to one reader or another, or to none.
const ODD: &str = "\0\n\r\t \u{1b}\u{7f}\"'\\%~-+*/,#=@[]{}().:;_<>|&$!?^`0159AaZzTLW\u{e9}\u{130}\u{17f}\u{200e}\u{202e}\u{feff}\u{fffd}\u{1f600}";

/// Numbers at and beyond the ends of types and of ranges.
const NUMBERS: &str = "
    0 -0 00 1 -1 +1 7 31 59 60 0.1 1.5 1e9 256 65536 2147483648 4294967296 9223372036854775807 9223372036854775808
    18446744073709551616 99999999999999999999999999 NaN";

/// Runs this many cases, or `DULY_MUTATIONS` times as many, each with a seed of its own. A failing case prints its seed and
/// its input; `DULY_SEED` with that seed starts with it.
pub(crate) fn each(usual: u64, mut case: impl FnMut(&mut Mutator)) {
    let from_environment = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}")))
    };
    let (first, times) = (from_environment("DULY_SEED", 0x5eed_0000), from_environment("DULY_MUTATIONS", 1));
    for seed in first..first + usual * times {
        case(&mut Mutator { random: Rng::with_seed(seed), seed, made: String::new() });
    }
}

/// As `each`, for code that might hang: a case that takes longer than the longest wait fails, and its thread is abandoned.
pub(crate) fn each_in_time(usual: u64, mut case: impl FnMut(&mut Mutator) + Send + 'static) {
    let (begun, begins) = std::sync::mpsc::channel();
    let loops = std::thread::spawn(move || {
        each(usual, |mutator| {
            let _ = begun.send(mutator.seed);
            case(mutator);
        });
    });
    let mut newest = None;
    loop {
        match begins.recv_timeout(patience()) {
            Ok(seed) => newest = Some(seed),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: DULY_SEED={newest:?}"),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    // It has dropped its sender: this does not wait.
    #[allow(clippy::disallowed_methods)]
    let ended = loops.join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Makes unexpected input out of expected input.
pub(crate) struct Mutator {
    pub(crate) random: Rng,
    pub(crate) seed: u64,
    made: String,
}

impl Drop for Mutator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("DULY_SEED={} fails; it made:{}", self.seed, self.made);
        }
    }
}

impl Mutator {
    /// Adds something to the report of a failing case.
    pub(crate) fn note(&mut self, made: impl std::fmt::Debug) {
        let made = format!("{made:?}");
        self.made.push_str("\n    ");
        self.made.extend(made.chars().take(2000));
    }

    pub(crate) fn choice<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.random.usize(..of.len())]
    }

    /// Returns one of the seeds with up to six changes; one in sixteen stays unchanged.
    pub(crate) fn text(&mut self, seeds: &[&str]) -> String {
        let mut text: Vec<char> = self.choice(seeds).chars().collect();
        let changes = if self.random.u8(..16) == 0 { 0 } else { self.random.usize(1..=6) };
        for _ in 0..changes {
            self.change(&mut text, seeds);
        }
        let text = String::from_iter(text);
        self.note(&text);
        text
    }

    /// As `text`, with a few bytes changed after that: it need not be UTF-8.
    pub(crate) fn bytes(&mut self, seeds: &[&str]) -> Vec<u8> {
        let mut bytes = self.text(seeds).into_bytes();
        for _ in 0..self.random.usize(..3) {
            let at = self.random.usize(..=bytes.len());
            match bytes.get_mut(at) {
                Some(byte) => *byte = self.random.u8(..),
                None => bytes.push(self.random.u8(..)),
            }
        }
        self.note(bytes.escape_ascii().to_string());
        bytes
    }

    fn number(&mut self) -> &'static str {
        self.choice(&NUMBERS.split_whitespace().collect::<Vec<_>>())
    }

    fn change(&mut self, text: &mut Vec<char>, seeds: &[&str]) {
        let (from, to) = self.stretch(text.len());
        match self.random.u8(..9) {
            0 => drop(text.drain(from..to)),
            1 => {
                let twice: Vec<char> = text[from..to].to_vec();
                // Sometimes more of it than any reader should accept.
                let times = if self.random.u8(..24) == 0 { 300 } else { 1 };
                text.splice(from..from, twice.repeat(times));
            }
            2 if to > from => text.swap(from, to - 1),
            3 => drop(text.splice(from..to, self.number().chars())),
            // Replaces a whole number.
            4 => {
                let Some(begin) = text[from..].iter().position(char::is_ascii_digit).map(|at| from + at) else {
                    return;
                };
                let length = text[begin..].iter().take_while(|letter| letter.is_ascii_digit()).count();
                drop(text.splice(begin..begin + length, self.number().chars()));
            }
            // A piece of another seed: valid elsewhere.
            5 | 6 => {
                let other: Vec<char> = self.choice(seeds).chars().collect();
                let (begin, end) = self.stretch(other.len());
                drop(text.splice(from..to, other[begin..end].iter().copied()));
            }
            7 => {
                for letter in &mut text[from..to] {
                    *letter =
                        if letter.is_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
                }
            }
            _ => {
                let odd = ODD.chars().nth(self.random.usize(..ODD.chars().count()));
                text.splice(from..to.min(from + 1), odd);
            }
        }
    }

    /// Returns a length up to `most`: often a short one.
    fn stretch(&mut self, length: usize) -> (usize, usize) {
        let from = self.random.usize(..=length);
        let most = if self.random.bool() { 3 } else { length };
        (from, length.min(from + self.random.usize(..=most)))
    }
}
