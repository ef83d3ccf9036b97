use super::*;

#[tokio::test]
async fn host_paths_are_what_their_type_says() {
    let node = node();
    let (dir, file, missing) =
        (node.base.join("dir"), node.base.join("file"), node.base.join("missing"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "").unwrap();
    let socket = node.base.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let null = PathBuf::from("/dev/null");
    for (path, kind, fails_as) in [
        (&dir, "", None),
        (&missing, "", None),
        (&dir, "Directory", None),
        (&dir, "DirectoryOrCreate", None),
        (&file, "File", None),
        (&file, "FileOrCreate", None),
        (&socket, "Socket", None),
        (&null, "CharDevice", None),
        (&file, "Directory", Some("a directory")),
        (&file, "DirectoryOrCreate", Some("a directory")),
        (&missing, "Directory", Some("a directory")),
        (&dir, "File", Some("a file")),
        (&dir, "FileOrCreate", Some("a file")),
        (&socket, "File", Some("a file")),
        (&missing, "File", Some("a file")),
        (&file, "Socket", Some("a socket file")),
        (&file, "CharDevice", Some("a character device")),
        (&null, "BlockDevice", Some("a block device")),
    ] {
        let prepared = node.prepare(&pod(host_path(path, kind))).await;
        match fails_as {
            None => assert_eq!(&prepared.unwrap()["h"].host_path, path, "{kind}"),
            Some(expected) => assert_eq!(
                error_chain(&prepared.unwrap_err()),
                format!(
                    "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: \
                     {} is not {expected}",
                    path.display()
                )
            ),
        }
        assert!(!missing.exists());
    }
}

#[tokio::test]
async fn the_two_creating_types_create_what_is_missing() {
    let node = node();
    let dir = node.base.join("a/b");
    let file = node.base.join("file");
    let prepare = async |path, kind| node.prepare(&pod(host_path(path, kind))).await;
    prepare(&dir, "DirectoryOrCreate").await.unwrap();
    prepare(&file, "FileOrCreate").await.unwrap();
    assert!(dir.is_dir());
    assert!(file.is_file());
    let orphan = node.base.join("no/parent");
    assert!(prepare(&orphan, "FileOrCreate").await.is_err());
    let error = prepare(&dir, "Folder").await.unwrap_err();
    assert!(error_chain(&error).ends_with("Folder is an invalid volume type"));
}
