// Package deploy has the files of this directory that the program itself installs: the units of
// systemd. So there is one text of each, for users who copy it and for `lighter install`. The
// files in containerd/ are for reading and copying: a test compares them with what the installer
// writes (package install/containerd).
package deploy

import _ "embed"

// NodeUnit and HubUnit are the units of a node and of a hub.
var (
	//go:embed systemd/lighter-node.service
	NodeUnit string
	//go:embed systemd/lighter-hub.service
	HubUnit string
)

// Paths that the units contain.
const (
	Program    = "/usr/local/bin/lighter"
	NodeConfig = "/etc/lighter/node.toml"
	HubConfig  = "/etc/lighter/hub.toml"
)
