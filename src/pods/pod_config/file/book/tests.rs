use super::*;

const STAMP: Stamp = Stamp {
    device: 1,
    inode: 2,
    size: 3,
    modified: 4,
    changed: 5,
};

fn good(name: &str) -> Reading {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    let manifest = Manifest {
        pods: vec![Arc::new(pod)],
        remarks: vec![],
    };
    Reading::Good([1; 16], manifest)
}

fn note(book: &mut Book, path: &str, reading: Reading) {
    book.note(Path::new(path), Freshness::Until(STAMP), reading);
}

fn names(book: &mut Book) -> Vec<String> {
    book.outcome(&Scope::Everything)
        .0
        .iter()
        .map(|pod| pod.name().to_string())
        .collect()
}

fn told(book: &mut Book) -> Vec<String> {
    let text = |notice| match notice {
        Notice::Refused(text) | Notice::Remark(text) => text,
    };
    book.outcome(&Scope::Everything)
        .1
        .into_iter()
        .map(text)
        .collect()
}

#[test]
fn a_file_is_read_again_only_when_its_stamp_changes() {
    let mut book = Book::default();
    let path = Path::new("a");
    assert!(book.must_read(path, STAMP));
    book.note(path, Freshness::Until(STAMP), good("a"));
    assert!(!book.must_read(path, STAMP));
    for change in [
        Stamp { inode: 9, ..STAMP },
        Stamp { size: 9, ..STAMP },
        Stamp {
            modified: 9,
            ..STAMP
        },
        Stamp {
            changed: 9,
            ..STAMP
        },
        Stamp { device: 9, ..STAMP },
    ] {
        assert!(book.must_read(path, change));
    }
    book.note(path, Freshness::Changing, Reading::SameBytes);
    assert!(book.must_read(path, STAMP) && !book.unsettled().is_empty());
    book.note(path, Freshness::Unreadable, Reading::Unread("no".into()));
    assert!(book.must_read(path, STAMP));
}

#[test]
fn a_file_turned_bad_keeps_its_last_good_pod_and_says_so_once() {
    let mut book = Book::default();
    note(&mut book, "a", good("a"));
    assert_eq!(names(&mut book), ["a"]);
    note(&mut book, "a", Reading::Bad([2; 16], "line 1: bad".into()));
    assert!(!book.unsettled().is_empty());
    assert_eq!(told(&mut book), [""; 0], "perhaps it is being written");
    assert!(!book.unsettled().is_empty());
    assert_eq!(
        told(&mut book),
        ["a: line 1: bad; the last good version runs on"]
    );
    assert!(book.unsettled().is_empty());
    assert_eq!(told(&mut book), [""; 0]);
    assert_eq!(names(&mut book), ["a"]);
    note(&mut book, "a", Reading::Bad([3; 16], "line 1: bad".into()));
    told(&mut book);
    assert_eq!(told(&mut book).len(), 1, "other bytes, said again");
}

#[test]
fn a_half_written_file_is_not_worth_a_word() {
    let mut book = Book::default();
    note(&mut book, "a", Reading::Bad([2; 16], "no object".into()));
    assert_eq!(told(&mut book), [""; 0]);
    note(&mut book, "a", good("a"));
    assert_eq!(told(&mut book), [""; 0]);
    assert_eq!(names(&mut book), ["a"]);
}

#[test]
fn a_file_bad_from_the_start_is_told_and_skipped() {
    let mut book = Book::default();
    note(&mut book, "a", Reading::Bad([2; 16], "bad".into()));
    note(&mut book, "b", good("b"));
    assert_eq!(names(&mut book), ["b"]);
    assert_eq!(told(&mut book), ["a: bad"]);
}

#[test]
fn what_is_gone_or_no_file_any_more_runs_no_more() {
    let mut book = Book::default();
    note(&mut book, "a", good("a"));
    note(&mut book, "b", good("b"));
    book.keep_only(&HashSet::from(["a".into()]));
    assert_eq!(names(&mut book), ["a"]);
    note(&mut book, "a", Reading::NotAFile("is a directory".into()));
    assert_eq!(names(&mut book), [""; 0]);
    assert_eq!(told(&mut book), ["a: is a directory"]);
    note(&mut book, "a", Reading::NotAFile("is a directory".into()));
    told(&mut book);
    assert_eq!(told(&mut book), [""; 0]);
}

#[test]
fn of_two_files_with_one_pod_the_first_by_name_counts() {
    let mut book = Book::default();
    note(&mut book, "b", good("same"));
    note(&mut book, "a", good("same"));
    assert_eq!(names(&mut book), ["same"]);
    note(&mut book, "c", good("same"));
    assert_eq!(
        told(&mut book),
        ["c: pod /same is already in a; this file is ignored"]
    );
    assert_eq!(told(&mut book), [""; 0]);
    book.keep_only(&HashSet::from(["b".into(), "c".into()]));
    assert_eq!(
        told(&mut book),
        ["c: pod /same is already in b; this file is ignored"]
    );
}

#[test]
fn an_unreadable_file_keeps_its_pod_until_it_can_be_read() {
    let mut book = Book::default();
    note(&mut book, "a", good("a"));
    book.note(
        Path::new("a"),
        Freshness::Unreadable,
        Reading::Unread("permission denied".into()),
    );
    assert_eq!(names(&mut book), ["a"]);
    assert_eq!(told(&mut book).len(), 1);
    assert_eq!(
        book.digest(Path::new("a")),
        None,
        "judged anew when it can be read"
    );
    assert!(
        book.unsettled().is_empty(),
        "tried again by the next scan, not by a tight loop"
    );
}

#[test]
fn a_fault_is_told_when_its_own_file_was_looked_at_again() {
    let mut book = Book::default();
    note(&mut book, "dir/a", Reading::Bad([1; 16], "half".into()));
    let entries = |name: &str| Scope::Entries([name.into()].into());
    assert_eq!(book.outcome(&entries("a")).1, []);
    assert_eq!(book.unsettled(), ["a".into()].into());
    assert_eq!(book.outcome(&entries("b")).1, []);
    let told = vec![Notice::Refused("dir/a: half".into())];
    assert_eq!(book.outcome(&entries("a")).1, told);
    assert!(book.unsettled().is_empty());
}
