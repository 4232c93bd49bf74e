package container

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/proc"
	"lighter/sleep"
)

// Containers of a user without privileges: the command runs again in a user namespace, in which the
// user is root, and has the further IDs that /etc/subuid and /etc/subgid give to the user. There it
// does what it does for root, but the image comes from an image store, whose node maps the owners
// of its files. The mount namespace is a slave of the machine's, so that mounts of the node appear.

// rootState has the directories of root's containers.
const rootState = "/var/lib/lighter-containers"

// killTime bounds the wait until the processes of a killed run are gone.
const killTime = 10 * time.Second

// namespace are the arguments of unshare that make the namespaces.
var namespace = []string{"--user", "--map-root-user", "--map-auto", "--mount", "--propagation", "slave"}

// enter replaces this process by the same command in a user namespace. It returns only if that
// fails.
func (s state) enter(ctx context.Context) error {
	const missing = "a container without root needs %s: install %s, or run this as root"
	if _, err := exec.LookPath("newuidmap"); err != nil {
		return fmt.Errorf(missing, "newuidmap", "uidmap")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf(missing, "unshare", "util-linux 2.38 or newer")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if out, err := exec.CommandContext(ctx, unshare, append(namespace, "true")...).CombinedOutput(); err != nil {
		return fmt.Errorf("make a user namespace: %s: %s, or run this as root", firstLine(out, err), wayOut(out))
	}
	if err := s.endKilled(ctx); err != nil {
		return err
	}
	argv := append(append([]string{unshare}, namespace...), append([]string{"--", self}, os.Args[1:]...)...)
	return fmt.Errorf("run %s: %w", unshare, unix.Exec(unshare, argv, os.Environ()))
}

// endKilled ends the containers of killed runs. Only a process outside of their user namespaces may
// end processes of all IDs in them: the command in its new namespace may end only the user's own.
// Their files are removed there.
func (s state) endKilled(ctx context.Context) error {
	if _, err := os.Stat(s.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	left, err := s.stale(ctx)
	for _, h := range left {
		err = errors.Join(err, h.kill(ctx), h.lock.Close())
	}
	return err
}

// kill ends the process of a container: the one that the runtime has written down, and the children
// of the runtime if it still runs. The runtime then ends. What stays is reported when the files are
// removed.
func (h home) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	h.endWritten(ctx)
	all, err := proc.All()
	for _, pid := range all {
		args := proc.Arguments(pid) // none if the process has ended
		at := slices.Index(args, h.engineDir())
		if at < 1 || args[at-1] != "--root" {
			continue
		}
		for _, child := range proc.Children(pid) {
			if start, err := proc.StartTicks(child); err == nil {
				end(ctx, child, start)
			}
		}
	}
	return err
}

// endWritten ends the process that runc (state.json) or crun (status) has written down, if it has
// not ended.
func (h home) endWritten(ctx context.Context) {
	for _, name := range []string{"state.json", "status"} {
		var written struct {
			RuncPID   int   `json:"init_process_pid"`
			RuncStart int64 `json:"init_process_start"` // as proc.StartTicks
			CrunPID   int   `json:"pid"`
			CrunStart int64 `json:"process-start-time"`
		}
		text, err := os.ReadFile(filepath.Join(h.engineDir(), h.name(), name))
		if err != nil || json.Unmarshal(text, &written) != nil {
			continue // it is the other runtime, or the container was not made
		}
		end(ctx, cmp.Or(written.RuncPID, written.CrunPID), cmp.Or(written.RuncStart, written.CrunStart))
	}
}

// end kills the process that has a PID since a time (proc.StartTicks), and waits until it is gone.
// The runtime in the new namespace may not signal it, and fails while it is still ending.
func end(ctx context.Context, pid int, start int64) {
	process, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	// The process is held: its PID cannot be another's between the look and the signal.
	isThere := func() bool {
		now, err := proc.StartTicks(pid)
		return err == nil && now == start
	}
	if isThere() {
		_ = process.Kill()
	}
	_ = process.Release()
	for isThere() && sleep.For(ctx, 10*time.Millisecond) {
	}
}

// firstLine returns the first line that a command has printed, or its error.
func firstLine(out []byte, err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if line == "" {
		return err.Error()
	}
	return line
}

// wayOut says how a user gets a user namespace, by what unshare has printed.
func wayOut(out []byte) string {
	switch text := string(out); {
	case strings.Contains(text, "/etc/sub"), strings.Contains(text, "newuidmap"), strings.Contains(text, "newgidmap"):
		return "let root add ranges of IDs (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER)"
	case strings.Contains(text, "don't exist"):
		return "let root make the user known (/etc/passwd)"
	case strings.Contains(text, "option"):
		return "install util-linux 2.38 or newer"
	}
	return "let root allow user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, " +
		"kernel.apparmor_restrict_unprivileged_userns)"
}

// isRootless reports whether this process is in a user namespace that is not the machine's.
func isRootless() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	ids := strings.Fields(string(text))
	return err == nil && (len(ids) != 3 || ids[1] != "0" || ids[2] != "4294967295")
}

// stateDir returns the absolute path of the directory of the containers' directories: the user's
// choice, or the default. A later run finds what a killed one has left by this path, whatever its
// own working directory is.
func stateDir(choice string) (string, error) {
	if choice != "" {
		return filepath.Abs(choice)
	}
	if os.Geteuid() == 0 && !isRootless() {
		return rootState, nil
	}
	data := os.Getenv("XDG_DATA_HOME")
	if filepath.IsAbs(data) {
		return filepath.Join(data, "lighter-containers"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", errors.Join(errors.New("the variable HOME is no path: choose a directory with --state"), err)
	}
	return filepath.Join(home, ".local/share/lighter-containers"), nil
}
