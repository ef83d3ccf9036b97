//! Spans, and the context of the current operation.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::context::SpanContext;
use super::queue::Queue;
use super::sampling::Ratio;
use super::span_data::{AttributeValue, SpanData, TraceSpanKind};
use crate::base::clock::{self, Instant};

/// Maximum length of an error message in a span, in bytes.
const MAX_FAILURE: usize = 1024;

tokio::task_local! {
    /// The span of the current operation.
    static CURRENT: SpanContext;
}

/// The parent of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// The span of the current operation, if any.
    Current,
    /// The remote span in a request's headers, if any.
    Remote(Option<SpanContext>),
    /// None; the request's span becomes a link. For clients that must not decide what is sampled.
    Linked(Option<SpanContext>),
}

/// A span in progress; ends when dropped.
#[derive(Debug)]
pub struct Span {
    context: SpanContext,
    recording: Option<Box<Recording>>,
}

#[derive(Debug)]
struct Recording {
    queue: Arc<Queue>,
    began: Instant,
    span: SpanData,
}

impl Span {
    pub(super) fn start(
        queue: &Arc<Queue>,
        ratio: Ratio,
        kind: TraceSpanKind,
        parent: Parent,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Span {
        let (above, remote, link) = match parent {
            Parent::Current => (current(), false, None),
            Parent::Remote(context) => (context, true, None),
            Parent::Linked(context) => (None, false, context),
        };
        let id = fastrand::u64(1..);
        let context = match &above {
            Some(above) => above.child(id),
            None => {
                let trace = fastrand::u128(1..);
                SpanContext::root(trace, id, ratio.takes(trace))
            }
        };
        let recording = context.is_sampled().then(|| {
            Box::new(Recording {
                queue: queue.clone(),
                began: clock::instant(),
                span: SpanData {
                    context: context.clone(),
                    parent: above.map(|above| (above.span(), remote)),
                    link,
                    kind,
                    name: name(),
                    began: clock::system_time(),
                    took: Duration::ZERO,
                    attributes: Vec::new(),
                    failure: None,
                },
            })
        });
        Span { context, recording }
    }

    /// The context that is propagated.
    pub fn context(&self) -> &SpanContext {
        &self.context
    }

    /// Adds attributes, which are computed only if the span is sampled. Values must not be secrets.
    pub fn set_attributes<I>(&mut self, attributes: impl FnOnce() -> I)
    where
        I: IntoIterator<Item = (&'static str, AttributeValue)>,
    {
        if let Some(recording) = &mut self.recording {
            recording.span.attributes.extend(attributes());
        }
    }

    /// Marks the span as failed; the message is computed only if the span is sampled.
    pub fn set_error(&mut self, why: impl FnOnce() -> String) {
        if let Some(recording) = &mut self.recording {
            let mut why = why();
            why.truncate(why.floor_char_boundary(MAX_FAILURE));
            recording.span.failure = Some(why);
        }
    }

    /// Runs work as the current operation of this span.
    pub async fn in_scope<F: Future>(&self, work: F) -> F::Output {
        CURRENT.scope(self.context.clone(), work).await
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let Recording { queue, began, mut span } = *recording;
            span.took = clock::since(began);
            queue.push(span);
        }
    }
}

/// The context of the current operation.
pub fn current() -> Option<SpanContext> {
    CURRENT.try_with(SpanContext::clone).ok()
}

/// Keeps the current operation's context for work that another task polls.
pub fn in_current_context<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let context = current();
    async move {
        match context {
            Some(context) => CURRENT.scope(context, work).await,
            None => work.await,
        }
    }
}

/// Runs work within a span, if there is one, and records its error.
pub async fn traced<F: Future>(
    span: Option<Span>,
    work: F,
    failure: impl FnOnce(&F::Output) -> Option<String>,
) -> F::Output {
    let Some(mut span) = span else {
        return work.await;
    };
    let done = span.in_scope(work).await;
    if let Some(why) = failure(&done) {
        span.set_error(|| why);
    }
    done
}
