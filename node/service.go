package node

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// announce says to all who want to know that the node is ready: its sockets are
// there, and what a former daemon served is served again. withdraw says that it is
// not any more. They are the one place for that.
func (n *Node) announce(ready func()) {
	n.log.Info("node is ready", "root", n.config.Root, "address", n.config.Address, "hubs", n.hubs.URL())
	n.web.ready()
	n.notify(fmt.Sprintf("READY=1\nSTATUS=%d trees served, root %s", len(n.mounts.Mounted()), n.config.Root))
	ready()
}

func (n *Node) withdraw() {
	n.health.Stop()
	n.web.notReady("it stops")
	n.notify("STOPPING=1\nSTATUS=stopping")
}

func (n *Node) notify(lines string) {
	if err := n.manager.Notify(lines); err != nil {
		n.log.Warn("cannot notify the service manager", "err", err)
	}
}

// oomScore is how the kernel is told to choose its victims: the node among the
// last, for all containers depend on it. The keeper comes after it.
const oomScore = -999

// last makes this process one of the last that the kernel kills when memory is
// short, unless a service manager has said something already.
func (n *Node) last() {
	const path = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) == "0" {
		err = os.WriteFile(path, []byte(strconv.Itoa(oomScore)), 0)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Info("when memory is short the node may be killed as any other process", "cause", err)
	}
}
