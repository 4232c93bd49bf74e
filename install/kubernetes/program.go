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
// back with the new program finds its previous one.
func (h *Host) publish() (path, digest string, err error) {
	in, err := os.Open(h.Program)
	if err != nil {
		return "", "", err
	}
	defer in.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, in); err != nil {
		return "", "", err
	}
	digest = fmt.Sprintf("%x", hash.Sum(nil))
	path = fmt.Sprintf("%s-%s", link, digest[:16])
	name := h.Machine.Path(path)
	if info, err := os.Stat(name); err == nil {
		if in, err := in.Stat(); err == nil && in.Size() == info.Size() && info.Mode().Perm() == 0o755 {
			return name, digest, nil // it is published whole
		}
	}
	if err := durable.MkdirAll(filepath.Dir(name)); err != nil {
		return "", "", err
	}
	for _, dir := range []string{directory, filepath.Dir(link)} { // whatever the umask
		if err := os.Chmod(h.Machine.Path(dir), 0o755); err != nil {
			return "", "", err
		}
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", "", err
	}
	staged := name + ".new" // one that a crash left is overwritten
	out, err := os.OpenFile(staged, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return "", "", err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return "", "", errors.Join(err, os.Remove(staged))
	}
	return name, digest, durable.Publish(staged, name)
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
	others, err := filepath.Glob(name + "-*")
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
