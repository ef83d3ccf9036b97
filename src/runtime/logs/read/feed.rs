//! One followed log: its open files and what was read last, shared by all who follow it.
//!
//! Nobody reads ahead. Whoever comes first to the end of what was read looks further, one at a time,
//! and leaves what it finds for the others; whoever has fallen behind reads the files for itself. So a
//! thousand followers cost one reader, and one that has stopped reading costs nothing.

use super::{
    LogOptions, blocking,
    history::{self, Live, Start},
    ring::Ring,
    step::{Idle, Step, read_at, step},
    watch::Directory,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::{collections::VecDeque, io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// When to look again without any event: events may be lost, and some file systems have none.
const UNPROMPTED: Duration = Duration::from_secs(5);
/// The same where there is no watch.
const POLL: Duration = Duration::from_secs(1);
/// A container's log is complete once it has ended and nothing was written for so long: the runtime
/// writes down what it still has in hand.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Most files of a log that are held open for followers that are behind. One that is further behind
/// has lost the rest, so that none can keep deleted files on the disk without limit.
const HELD: usize = 8;

/// A followed log.
pub(super) struct Feed {
    log: PathBuf,
    directory: Arc<Directory>,
    /// Whoever looks at the files holds it.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Consecutive files of the log; the runtime writes to the last one.
    links: VecDeque<Arc<Link>>,
    ring: Ring,
    nothing: Option<Nothing>,
}

/// A file of the log.
#[derive(Debug)]
pub(super) struct Link {
    number: u64,
    live: Live,
}

/// There was nothing at a place.
#[derive(Clone, Copy)]
struct Nothing {
    /// The place.
    at: Option<(u64, u64)>,
    /// The change that had been seen before the look.
    version: u64,
    /// When the look began, and when the first began that found nothing here.
    looked: Instant,
    first: Instant,
    /// When to look again.
    until: Instant,
    idle: Idle,
}

/// How far a follower has come. Without a file, it waits for the first there will be.
#[derive(Clone, Default)]
struct Place {
    link: Option<Arc<Link>>,
    offset: u64,
}

impl Place {
    fn key(&self) -> Option<(u64, u64)> {
        Some((self.link.as_ref()?.number, self.offset))
    }
}

enum Look {
    Data(Bytes),
    Moved(Place),
    Nothing(Nothing),
}

/// What can be said without looking at the files.
enum Known {
    Look(Look),
    /// The follower is behind and reads for itself.
    Behind(Arc<Link>),
    /// Nobody has been further.
    Frontier,
}

impl Feed {
    pub(super) fn new(log: PathBuf, directory: Arc<Directory>) -> Self {
        Self {
            log,
            directory,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Begins to follow where the options say. `ended` completes when nobody writes any more.
    pub(super) async fn follow(
        self: Arc<Self>,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<(Start, Follower)> {
        // Those who follow already may not have come to the file that is written now. Its last lines are
        // not those of the one that they are in, so who wants last lines reads for itself then.
        let feed = match options.tail_lines.is_some() && self.is_outdated().await? {
            true => Arc::new(Self::new(self.log.clone(), self.directory.clone())),
            false => self,
        };
        feed.begin(options, ended).await
    }

    /// Whether another file has taken the place of the newest known one.
    async fn is_outdated(&self) -> io::Result<bool> {
        let Some(newest) = self.state.lock().links.back().cloned() else {
            return Ok(false);
        };
        let log = self.log.clone();
        blocking(move || {
            history::newest(&log).map(|id| id.is_some_and(|id| id != newest.live.segment.id))
        })
        .await
    }

    async fn begin(
        self: Arc<Self>,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<(Start, Follower)> {
        let changes = self.directory.changes();
        let link = {
            let _turn = self.turn.lock().await;
            self.newest().await?
        };
        let (log, at) = (self.log.clone(), link.clone());
        let start = blocking(move || {
            let live = at.as_deref().map(|link| &link.live);
            let length = live.map_or(Ok(0), |live| {
                live.segment.file.metadata().map(|file| file.len())
            })?;
            history::start(&log, live, length, &options)
        })
        .await?;
        let place = Place {
            link,
            offset: start.offset,
        };
        let follower = Follower {
            feed: self,
            place,
            changes,
            ended,
            ended_at: None,
        };
        Ok((start, follower))
    }

    /// The newest known file, opened if none is known yet. Wants the turn.
    async fn newest(&self) -> io::Result<Option<Arc<Link>>> {
        if let Some(newest) = self.state.lock().links.back() {
            return Ok(Some(newest.clone()));
        }
        let log = self.log.clone();
        let live = blocking(move || history::open_live(&log)).await?;
        Ok(live.map(|live| self.state.lock().add(live)))
    }

    /// Looks on from a place. What was found before the change `version`, or before `fresh`, is looked
    /// at again.
    async fn look(&self, place: &Place, version: u64, fresh: Option<Instant>) -> io::Result<Look> {
        let known = || self.state.lock().known(place, version, fresh);
        loop {
            match known() {
                Known::Look(look) => return Ok(look),
                Known::Behind(link) => {
                    let (at, offset) = (link.clone(), place.offset);
                    let bytes = blocking(move || read_at(&at.live.segment, offset)).await?;
                    if !bytes.is_empty() {
                        return Ok(Look::Data(bytes));
                    }
                    let next = self.state.lock().after(place)?;
                    if let Some(next) = next {
                        return Ok(Look::Moved(next));
                    }
                    // Behind what was read of the newest file, and nothing there: it was cut.
                    let _turn = self.turn.lock().await;
                    if self.state.lock().is_newest(&link) {
                        return self.look_at_files(place, version).await;
                    }
                }
                Known::Frontier => {
                    let _turn = self.turn.lock().await;
                    match known() {
                        Known::Look(look) => return Ok(look),
                        Known::Behind(_) => {}
                        Known::Frontier => return self.look_at_files(place, version).await,
                    }
                }
            }
        }
    }

    /// Wants the turn.
    async fn look_at_files(&self, place: &Place, version: u64) -> io::Result<Look> {
        let looked = Instant::now();
        let Some(link) = place.link.clone() else {
            let Some(link) = self.newest().await? else {
                let idle = Idle {
                    quiet: Duration::MAX,
                    rotated: false,
                    again: None,
                };
                return Ok(self.nothing(place, version, looked, idle));
            };
            return Ok(Look::Moved(Place {
                link: Some(link),
                offset: 0,
            }));
        };
        let first = self.state.lock().nothing.filter(|n| n.at == place.key());
        let idle_for = first.map_or(Duration::ZERO, |nothing| nothing.first.elapsed());
        let (log, at, offset) = (self.log.clone(), link.clone(), place.offset);
        let closed = self.directory.closed();
        let step = blocking(move || step(&log, &at.live, offset, idle_for, &closed)).await?;
        match step {
            Step::Data(bytes) => {
                let mut state = self.state.lock();
                state.ring.push(link.number, offset, bytes.clone());
                state.nothing = None;
                Ok(Look::Data(bytes))
            }
            Step::Next(live) => Ok(Look::Moved(Place {
                link: Some(self.state.lock().add(live)),
                offset: 0,
            })),
            Step::Idle(idle) => Ok(self.nothing(place, version, looked, idle)),
        }
    }

    fn nothing(&self, place: &Place, version: u64, looked: Instant, idle: Idle) -> Look {
        let unprompted = match self.directory.is_watched() {
            true => UNPROMPTED,
            false => POLL,
        };
        let pause = idle.again.unwrap_or(unprompted).min(unprompted);
        let mut state = self.state.lock();
        let before = state.nothing.filter(|nothing| nothing.at == place.key());
        let nothing = Nothing {
            at: place.key(),
            version,
            looked,
            first: before.map_or(looked, |nothing| nothing.first),
            until: Instant::now() + pause,
            idle,
        };
        state.nothing = Some(nothing);
        Look::Nothing(nothing)
    }
}

impl State {
    /// Takes the next file, and lets go of those that nobody is in any more.
    fn add(&mut self, live: Live) -> Arc<Link> {
        let number = self.links.back().map_or(0, |newest| newest.number + 1);
        let link = Arc::new(Link { number, live });
        self.links.push_back(link.clone());
        self.nothing = None;
        while self.links.len() > HELD
            || (self.links.len() > 1
                && self
                    .links
                    .front()
                    .is_some_and(|f| Arc::strong_count(f) == 1))
        {
            self.links.pop_front();
        }
        link
    }

    fn is_newest(&self, link: &Link) -> bool {
        self.links
            .back()
            .is_some_and(|newest| newest.number == link.number)
    }

    fn known(&self, place: &Place, version: u64, fresh: Option<Instant>) -> Known {
        let Some(link) = &place.link else {
            return match self.links.front().cloned() {
                None => self.still_nothing(place, version, fresh),
                first => Known::Look(Look::Moved(Place {
                    link: first,
                    offset: 0,
                })),
            };
        };
        if let Some(bytes) = self.ring.get(link.number, place.offset) {
            return Known::Look(Look::Data(bytes));
        }
        if !self.is_newest(link) || self.ring.is_behind(link.number, place.offset) {
            return Known::Behind(link.clone());
        }
        self.still_nothing(place, version, fresh)
    }

    fn still_nothing(&self, place: &Place, version: u64, fresh: Option<Instant>) -> Known {
        let holds = |nothing: &Nothing| {
            nothing.at == place.key()
                && nothing.version >= version
                && nothing.until > Instant::now()
                && fresh.is_none_or(|fresh| nothing.looked >= fresh)
        };
        match self.nothing.filter(holds) {
            Some(nothing) => Known::Look(Look::Nothing(nothing)),
            None => Known::Frontier,
        }
    }

    /// The beginning of the file after the one of a place, if there is one yet.
    fn after(&self, place: &Place) -> io::Result<Option<Place>> {
        let Some(link) = &place.link else {
            return Ok(None);
        };
        let next = link.number + 1;
        if self.links.front().is_some_and(|first| first.number > next) {
            return Err(io::Error::other(
                "the reader has fallen behind by more files than are kept",
            ));
        }
        let found = self.links.iter().find(|link| link.number == next);
        Ok(found.map(|link| Place {
            link: Some(link.clone()),
            offset: 0,
        }))
    }
}

/// One who follows a log.
pub(super) struct Follower {
    feed: Arc<Feed>,
    place: Place,
    changes: watch::Receiver<u64>,
    ended: BoxFuture<'static, ()>,
    /// When it was known that nobody writes any more.
    ended_at: Option<Instant>,
}

/// What a follower comes upon.
pub(super) enum Piece {
    /// Bytes of the file.
    Bytes(Bytes),
    /// The end of one file; more follow.
    FileEnd,
}

impl Follower {
    /// The next piece; waits for it. `None` when the log is complete.
    pub(super) async fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            let version = *self.changes.borrow_and_update();
            match self.feed.look(&self.place, version, self.ended_at).await? {
                Look::Data(bytes) => {
                    self.place.offset += bytes.len() as u64;
                    return Ok(Some(Piece::Bytes(bytes)));
                }
                Look::Moved(place) => {
                    let before = std::mem::replace(&mut self.place, place);
                    if before.link.is_some() {
                        return Ok(Some(Piece::FileEnd));
                    }
                }
                Look::Nothing(nothing) if self.is_over(&nothing) => return Ok(None),
                Look::Nothing(nothing) => self.wait(&nothing).await,
            }
        }
    }

    fn is_over(&self, nothing: &Nothing) -> bool {
        let fresh = self.ended_at.is_some_and(|ended| nothing.looked >= ended);
        fresh && !nothing.idle.rotated && nothing.idle.quiet >= LAST_WORDS
    }

    async fn wait(&mut self, nothing: &Nothing) {
        let mut until = nothing.until;
        if self.ended_at.is_some() && !nothing.idle.rotated {
            let left = LAST_WORDS.saturating_sub(nothing.idle.quiet);
            until = until.min(nothing.looked + left);
        }
        let ended = tokio::select! {
            changed = self.changes.changed() => {
                if changed.is_err() {
                    // Never, as the feed holds the other end; it must not become a busy loop.
                    tokio::time::sleep(POLL).await;
                }
                false
            }
            () = tokio::time::sleep_until(until) => false,
            () = &mut self.ended, if self.ended_at.is_none() => true,
        };
        if ended || self.ended_at.is_some() {
            self.ended_at = Some(Instant::now());
        }
    }
}
