package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

type snapshotterOptions struct {
	root       string // directory of the snapshotter's data
	address    string // path of the snapshotter's socket
	programs   string // the directory of the peer's programs
	noPrefetch bool   // disables prefetching
}

// The peer's configuration. Its arguments are three paths: the configuration of nydusd, the script
// that starts nydusd (the function configure writes both), and nydus-image.
const snapshotterConfig = `version = 1
daemon_mode = "dedicated"
cleanup_on_close = true
[system]
enable = false
[daemon]
nydusd_config = %q
nydusd_path = %q
nydusimage_path = %q
fs_driver = "fusedev"
recover_policy = "none"
threads_number = 4
[cgroup]
enable = false
[log]
log_to_stdout = true
[metrics]
address = ""
`

// The configuration of nydusd. Its argument enables prefetching.
const daemonConfig = `{
  "device": {
    "backend": {"type": "registry", "config": {"scheme": "http", "timeout": 5, "connect_timeout": 5, "retry_limit": 2}},
    "cache": {"type": "blobcache"}
  },
  "mode": "direct", "digest_validate": false, "iostats_files": false, "enable_xattr": true, "amplify_io": 1048576,
  "fs_prefetch": {"enable": %t, "threads_count": 8, "merging_size": 1048576, "prefetch_all": %[1]t}
}
`

// configure writes the configurations and the script that starts nydusd below the root. It returns
// the path of the snapshotter's configuration.
func configure(o snapshotterOptions) (string, error) {
	dir := filepath.Join(o.root, "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	daemon, settings, main := filepath.Join(dir, "nydusd"), filepath.Join(dir, "nydusd.json"),
		filepath.Join(dir, "config.toml")
	for path, text := range map[string]string{
		daemon:   fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\" --rlimit-nofile 0\n", filepath.Join(o.programs, "nydusd")),
		settings: fmt.Sprintf(daemonConfig, !o.noPrefetch),
		main:     fmt.Sprintf(snapshotterConfig, settings, daemon, filepath.Join(o.programs, "nydus-image")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			return "", err
		}
	}
	return main, nil
}

// become replaces this process by the peer's program.
func become(o snapshotterOptions) error {
	config, err := configure(o)
	if err != nil {
		return err
	}
	program := filepath.Join(o.programs, "containerd-nydus-grpc")
	err = syscall.Exec(program, []string{program, "--root", o.root, "--address", o.address, "--config", config},
		os.Environ())
	return fmt.Errorf("start %s: %w", program, err)
}
