package kubernetes

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/durable"
)

// Paths of our own on the machine. /usr is read-only on some distributions, /opt is not.
const (
	directory   = "/opt/lighter"
	failureFile = directory + "/rolled-back"
	link        = directory + "/bin/lighter" // to the program of the service
)

// Resident keeps this program in memory. The image of a pod may be lazy: a program that is not read
// to its end would wait for the node that it has to start again.
func Resident() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var access, offset, device string
		var inode uint64 // 0: no file
		if _, err := fmt.Sscanf(line, "%x-%x %s %s %s %d", &from, &to, &access, &offset, &device, &inode); err != nil {
			return fmt.Errorf("read /proc/self/maps: %q: %w", line, err)
		}
		if inode == 0 || !strings.HasPrefix(access, "r") {
			continue
		}
		if _, _, err := unix.Syscall(unix.SYS_MLOCK, from, to-from, 0); err != 0 {
			return fmt.Errorf("lock the program in memory: %w", err)
		}
	}
	return nil
}

// publish copies the program to a path that contains its digest. So a service that does not come
// back with the new program finds its previous one. A program that runs from its published path is
// not read again.
func (h *Host) publish() (path string, err error) {
	in, err := os.Open(h.Program)
	if err != nil {
		return "", err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return "", err
	}
	if path, err := h.published(info); path != "" || err != nil {
		return path, err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, in); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-%x", h.Machine.Path(link), hash.Sum(nil)[:8])
	if old, err := os.Stat(name); err == nil && old.Size() == info.Size() && old.Mode().Perm() == 0o755 {
		return name, nil // it is published whole
	}
	if err := durable.MkdirAll(filepath.Dir(name)); err != nil {
		return "", err
	}
	for _, dir := range []string{directory, filepath.Dir(link)} { // whatever the umask
		if err := os.Chmod(h.Machine.Path(dir), 0o755); err != nil {
			return "", err
		}
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	staged := name + ".new" // one that a crash left is overwritten
	out, err := os.OpenFile(staged, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(staged))
	}
	return name, durable.Publish(staged, name)
}

// published returns the path of the published program that is the given file, or "".
func (h *Host) published(program os.FileInfo) (string, error) {
	names, err := filepath.Glob(h.Machine.Path(link) + "-*[0-9a-f]") // none that is staged
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, program) {
			return name, nil
		}
	}
	return "", err
}

// settle makes the link for users, and removes earlier programs: the service runs the new one.
func (h *Host) settle(program string) error {
	name := h.Machine.Path(link)
	if to, err := os.Readlink(name); err != nil || to != filepath.Base(program) {
		_ = os.Remove(name + ".new") // a crash may have left it
		if err := errors.Join(os.Symlink(filepath.Base(program), name+".new"),
			os.Rename(name+".new", name)); err != nil {
			return err
		}
	}
	others, err := filepath.Glob(name + "-*") // also what a crash has staged
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != program {
			err = errors.Join(err, os.Remove(other))
		}
	}
	return errors.Join(err, h.forget(), durable.SyncDir(filepath.Dir(name)))
}
