package site

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PushName is a name of the hub. PushTable makes the hub stand for the registry under this name,
// and StartPushName makes the name known.
const PushName = "push.test"

// PushTable is the part of a hub's configuration with which clients push to the registry through
// the hub.
const PushTable = "\n[[registry]]\nhost = \"" + registryURL + "\"\nprivate = true\nplain_http = true\n" +
	"push_names = [\"" + PushName + "\"]\n"

// PushReference returns the reference under which NAME:latest is pushed to the registry through a
// hub.
func (h *Hub) PushReference(name string) string {
	return PushName + h.address[len(HubIP):] + "/" + name + ":latest"
}

// StartPushName makes PushName known in the enclosure, until stop is called.
func StartPushName() (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "hosts-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "hosts")
	err = os.WriteFile(file, []byte("127.0.0.1 localhost\n"+HubIP+" "+PushName+"\n"), 0o644)
	if err == nil {
		err = unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, "")
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return func() error {
		return errors.Join(unix.Unmount("/etc/hosts", unix.MNT_DETACH), os.RemoveAll(dir))
	}, nil
}
