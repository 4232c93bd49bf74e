package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
)

// Text is a file as it was read.
type Text struct {
	Path  string // without symbolic links
	Bytes []byte // nil: there is no file
}

// maxText bounds the size of a file that is read.
const maxText = 16 << 20

// Read reads a file that may have to be changed. It follows symbolic links, which stay. It refuses
// a file that users other than root could change, and what is no file.
func Read(path string) (Text, error) {
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isLink(path):
		return Text{}, &Refused{Path: path, Why: "it is a symbolic link to a file that does not exist"}
	case errors.Is(err, fs.ErrNotExist):
		return absent(path)
	case err != nil:
		return Text{}, err
	}
	file, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Text{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Text{}, err
	}
	if why := unsafe(info); why != "" {
		return Text{}, &Refused{Path: real, Why: why}
	}
	if !info.Mode().IsRegular() {
		return Text{}, &Refused{Path: real, Why: "it is not a regular file"}
	}
	if err := safeDirectory(filepath.Dir(real)); err != nil {
		return Text{}, err
	}
	b, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err == nil && len(b) > maxText {
		return Text{}, &Refused{Path: real, Why: fmt.Sprintf("it is larger than %d bytes", maxText)}
	}
	return Text{Path: real, Bytes: append([]byte{}, b...)}, err
}

func isLink(path string) bool {
	_, err := os.Readlink(path)
	return err == nil
}

// absent returns the text of a file that does not exist. Its directory may not exist, either.
func absent(path string) (Text, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return Text{Path: path}, nil
	}
	if err == nil {
		err = safeDirectory(dir)
	}
	return Text{Path: filepath.Join(dir, filepath.Base(path))}, err
}

func safeDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if why := unsafe(info); why != "" {
		return &Refused{Path: dir, Why: why}
	}
	return nil
}

// Trusted returns an error if users other than root could replace a program or change it.
func Trusted(program string) error {
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	if why := unsafe(info); why != "" {
		return fmt.Errorf("%s must not run as root: %s", program, why)
	}
	if err := safeDirectory(filepath.Dir(program)); err != nil {
		return fmt.Errorf("%s must not run as root: its directory: %w", program, err)
	}
	return nil
}

// unsafe returns why users other than root can change a file or directory, or "".
func unsafe(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Sprintf("it belongs to user %d, and not to root: chown root it first", stat.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Sprintf("users other than root may write to it (mode %04o): chmod go-w it first", info.Mode().Perm())
	}
	return ""
}

// Change replaces the contents of a file.
type Change struct {
	Path     string
	Old, New []byte // nil: no file
	// Directory says that the file's directory belongs to the change: it is made with the file, and
	// removed with it if it is empty.
	Directory bool
	Live      bool // programs read the new contents without a restart
}

// To returns the change that gives a file new contents (nil: no file), or nothing if it has them.
func (t Text) To(text []byte) []Change {
	if bytes.Equal(t.Bytes, text) && (t.Bytes == nil) == (text == nil) {
		return nil
	}
	return []Change{{Path: t.Path, Old: t.Bytes, New: text}}
}

// inverse returns the changes that undo others.
func inverse(changes []Change) []Change {
	var back []Change
	for _, c := range changes {
		c.Old, c.New = c.New, c.Old
		back = append([]Change{c}, back...)
	}
	return back
}

// lockTimeout bounds the wait for another run that changes a file of the same directory.
const lockTimeout = 10 * time.Second

// lock locks the directories of all changed files against other runs. A directory that does not
// exist is not locked, because only one run can make it.
func lock(ctx context.Context, changes []Change) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	seen := map[string]bool{}
	for _, c := range changes {
		path := filepath.Dir(c.Path)
		if seen[path] || Missing(path) {
			continue
		}
		seen[path] = true
		one, err := durable.LockDir(ctx, path)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("wait for another lighter install that changes files in %s: %w", path, err)
		}
		unlocks = append(unlocks, one)
	}
	return unlock, nil
}

// staged is the suffix of a file with new contents. A file that a crash left is overwritten.
const stagedSuffix = ".lighter-new"

// stage writes the new contents of all changed files beside them, with their owners and modes.
func stage(changes []Change) (map[string]string, error) {
	staged := map[string]string{}
	for _, c := range changes {
		if c.New == nil {
			continue
		}
		var err error
		if c.Directory {
			err = makeDirectory(filepath.Dir(c.Path))
		}
		if err == nil {
			staged[c.Path] = c.Path + stagedSuffix
			err = write(staged[c.Path], c)
		}
		if errors.Is(err, unix.EROFS) {
			return staged, &Refused{Path: c.Path, Why: "its file system is read-only"}
		}
		if err != nil {
			return staged, fmt.Errorf("write the new %s: %w", c.Path, err)
		}
	}
	return staged, nil
}

// makeDirectory makes a directory that all users may read.
func makeDirectory(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// write writes a change's new contents to a file, which gets the owner and mode of the old file.
func write(path string, c Change) error {
	mode, uid, gid := fs.FileMode(0o644), -1, -1
	if info, err := os.Stat(c.Path); err == nil {
		stat := info.Sys().(*syscall.Stat_t)
		mode, uid, gid = info.Mode().Perm(), int(stat.Uid), int(stat.Gid)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(c.New)
	if err == nil {
		err = errors.Join(file.Chmod(mode), file.Chown(uid, gid))
	}
	return errors.Join(err, file.Sync(), file.Close())
}

// discard removes staged files that were not published, and directories that were made for them.
func discard(changes []Change, staged map[string]string) {
	for _, c := range changes {
		if path, ok := staged[c.Path]; ok {
			_ = os.Remove(path) // it was published, or the next run overwrites it
		}
		if c.Directory && c.Old == nil && Missing(c.Path) {
			_ = os.Remove(filepath.Dir(c.Path)) // others may have files in it
		}
	}
}

// publish replaces all files by their staged ones. If one cannot be replaced, those that were
// replaced get their old contents.
func publish(changes []Change, staged map[string]string) error {
	for i, c := range changes {
		if err := publishOne(c, staged[c.Path]); err != nil {
			back := inverse(changes[:i])
			again, err2 := stage(back)
			if err2 == nil && len(back) > 0 {
				err2 = publish(back, again)
			}
			discard(back, again)
			return errors.Join(err, err2)
		}
	}
	return nil
}

func publishOne(c Change, staged string) error {
	now, err := os.ReadFile(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		now, err = nil, nil
	} else if now == nil {
		now = []byte{}
	}
	switch {
	case err != nil:
		return err
	case !bytes.Equal(now, c.Old) || (now == nil) != (c.Old == nil):
		return &Refused{Path: c.Path, Why: "another program has changed it meanwhile: run the command again"}
	case c.New == nil:
		return remove(c)
	}
	if err := durable.Publish(staged, c.Path); errors.Is(err, unix.EBUSY) {
		return &Refused{Path: c.Path, Why: "it is a mount point: edit the file that is mounted there"}
	} else if err != nil {
		return fmt.Errorf("replace %s: %w", c.Path, err)
	}
	return nil
}

func remove(c Change) error {
	if err := os.Remove(c.Path); err != nil {
		return err
	}
	dir := filepath.Dir(c.Path)
	if err := durable.SyncDir(dir); err != nil || !c.Directory {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return nil // others have files in it
	}
	return durable.SyncDir(filepath.Dir(dir))
}
