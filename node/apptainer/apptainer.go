// Package apptainer writes the files by which Apptainer and SingularityCE know how to run an image:
// the directory .singularity.d, with the image's environment, entry point and labels, and the links
// to it. They are a layer over the image's tree, which stays as it is.
//
// Apptainer makes such files when it builds an image of its own from an OCI image. They mean the
// same here: a variable that the caller has goes before the image's, except PATH; arguments replace
// the image's command, and follow its entry point; the image's user and working directory have no
// effect.
//
// It promises: the layer hides no file of the tree, and changes no owner, mode or time of a
// directory. A tree that has a .singularity.d keeps its own. Variables, arguments and labels are
// quoted, so no text of a config becomes a command of a script.
//
// Extended attributes of the directories that the layer merges with (/, /etc, /var) are not copied.
//
// Source: Apptainer's user guide, "Support for Docker and OCI Containers" and "Environment and
// Metadata".
package apptainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// own is the directory of the files in an image.
const own = ".singularity.d"

// links are the symbolic links to the files, by their names in the image's root directory.
var links = map[string]string{
	"singularity": own + "/runscript",
	"environment": own + "/env/90-environment.sh",
	".run":        own + "/actions/run",
	".exec":       own + "/actions/exec",
	".test":       own + "/actions/test",
	".shell":      own + "/actions/shell",
}

// Directories and files of the machine that Apptainer mounts in containers. Versions that cannot
// use an overlay need a place for each of them.
var (
	directories = map[string]fs.FileMode{"dev": 0o755, "etc": 0o755, "home": 0o755, "proc": 0o755, "root": 0o700,
		"sys": 0o755, "tmp": fs.ModeSticky | 0o777, "var": 0o755, "var/tmp": fs.ModeSticky | 0o777}
	files = []string{"etc/hosts", "etc/resolv.conf"}
)

// Write writes the layer of an image into dir, an empty directory. tree is where the image's tree
// is mounted, and config is the image's config.
func Write(dir, tree string, config []byte) error {
	var image v1.Image
	if err := json.Unmarshal(config, &image); err != nil {
		return fmt.Errorf("parse the image's config: %w", err)
	}
	below, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	above, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(err, below.Close())
	}
	l := layer{tree: below, root: above, merged: map[string]bool{".": true}}
	err = errors.Join(l.write(&image.Config), above.Close(), below.Close())
	if err != nil {
		return fmt.Errorf("write Apptainer's files in %s: %w", dir, err)
	}
	return nil
}

// layer is a layer that is being written.
type layer struct {
	tree, root *os.Root
	merged     map[string]bool // its directories that the tree has, too
}

func (l *layer) write(config *v1.ImageConfig) error {
	has, err := l.treeHas(own)
	if err != nil {
		return err
	}
	if !has {
		if err := l.writeOwn(config); err != nil {
			return err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(directories)) {
		if err := l.place(dir, func() error { return l.mkdir(dir, directories[dir]) }); err != nil {
			return err
		}
	}
	for _, file := range files {
		if err := l.place(file, func() error { return l.writeFile(file, nil, 0o644) }); err != nil {
			return err
		}
	}
	for dir := range l.merged {
		if err := l.copyAttributes(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeOwn writes the image's environment, scripts and labels.
func (l *layer) writeOwn(config *v1.ImageConfig) error {
	for _, dir := range []string{own, own + "/actions", own + "/env", own + "/libs"} {
		if err := l.mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	scripts := scriptsOf(config)
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		if err := l.writeFile(own+"/"+name, []byte(scripts[name]), 0o755); err != nil {
			return err
		}
	}
	labels, err := json.MarshalIndent(labelsOf(config), "", "  ")
	if err != nil {
		return err
	}
	if err := l.writeFile(own+"/labels.json", append(labels, '\n'), 0o644); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if err := l.place(name, func() error { return l.root.Symlink(links[name], name) }); err != nil {
			return err
		}
	}
	return nil
}

// place calls add to add a file, unless the tree has it already, or has something else than a
// directory where its directory would be. No symbolic link of the tree is followed.
func (l *layer) place(file string, add func() error) error {
	if dir := path.Dir(file); dir != "." {
		stat, err := l.tree.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // only this layer has the directory
			return add()
		case err != nil:
			return err
		case !stat.IsDir():
			return nil
		}
	}
	has, err := l.treeHas(file)
	if err != nil || has {
		return err
	}
	if dir := path.Dir(file); !l.merged[dir] {
		if err := l.mkdir(dir, 0o755); err != nil {
			return err
		}
		l.merged[dir] = true
	}
	return add()
}

// treeHas reports whether the tree has a file. The file's directory is no symbolic link.
func (l *layer) treeHas(file string) (bool, error) {
	_, err := l.tree.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// mkdir makes a directory with exactly this mode, whatever the process's umask.
func (l *layer) mkdir(dir string, mode fs.FileMode) error {
	return errors.Join(l.root.Mkdir(dir, 0o700), l.root.Chmod(dir, mode))
}

func (l *layer) writeFile(name string, text []byte, mode fs.FileMode) error {
	return errors.Join(l.root.WriteFile(name, text, 0o600), l.root.Chmod(name, mode))
}

// copyAttributes gives a directory the owner, mode and times that it has in the tree: where layers
// merge, the uppermost one decides.
func (l *layer) copyAttributes(dir string) error {
	info, err := l.tree.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s has no owner", dir)
	}
	return errors.Join(l.root.Lchown(dir, int(stat.Uid), int(stat.Gid)), l.root.Chmod(dir, info.Mode()),
		l.root.Chtimes(dir, info.ModTime(), info.ModTime()))
}
