package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/index"
	"lighter/format/tree"
)

var (
	errNoErofs  = errors.New("this kernel has no EROFS: load the module erofs, or use a kernel with CONFIG_EROFS_FS")
	errModeNone = errors.New("this node is configured to mount no trees (mount_mode is none)")
)

// probePause is the least time between two attempts to mount an empty tree.
const probePause = 10 * time.Second

// Probe finds out whether trees can be mounted here, by mounting an empty one,
// and remembers it for Mountable. It is called once, before the first Mount.
func (t *Trees) Probe() {
	t.probing.Lock()
	defer t.probing.Unlock()
	_ = t.probe() // it is logged, and remembered
}

// Mountable says why no tree can be mounted on this machine, or nil. What is
// mounted already goes on all the same. What may be over by now (the kernel was
// short of memory, a module was missing) is tried again once in a while.
func (t *Trees) Mountable() error {
	t.mu.Lock()
	unable, due := t.unable, time.Since(t.probed) >= probePause
	t.mu.Unlock()
	if unable == nil || t.kernel.mode == None || !due || !t.probing.TryLock() {
		return unable
	}
	defer t.probing.Unlock()
	return t.probe()
}

// probe tries it and says what is new. The caller has locked probing.
func (t *Trees) probe() error {
	err := t.tryMount()
	t.mu.Lock()
	before := t.unable
	t.unable, t.probed = err, time.Now()
	t.mu.Unlock()
	switch {
	case err != nil && (before == nil || err.Error() != before.Error()):
		t.log.Error("no image will be lazy: all are unpacked as overlayfs would", "cause", err)
	case err == nil && before != nil:
		t.log.Info("trees can be mounted now: images that are pulled from now on may be lazy")
	}
	return err
}

// probePoint returns where below root the empty tree is mounted for a moment.
func probePoint(root string) string { return filepath.Join(root, "probe", "mount") }

// tryMount mounts an empty tree, and takes it away again. What goes wrong before
// the kernel is asked proves nothing, and is logged.
func (t *Trees) tryMount() error {
	if t.kernel.mode == None {
		return errModeNone
	}
	point := probePoint(t.root)
	dir := filepath.Dir(point)
	metadata, device := filepath.Join(dir, "metadata"), filepath.Join(dir, "device")
	var image bytes.Buffer
	_, err := index.Make(&tree.Tree{Root: tree.NewDir(tree.Node{Mode: 0o755}, nil)}, &image)
	if err == nil {
		err = errors.Join(unmount(point), os.RemoveAll(dir)) // of a probe that was killed
	}
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(point, 0o700),
			os.WriteFile(metadata, image.Bytes(), 0o400), os.WriteFile(device, nil, 0o400))
	}
	if err != nil {
		t.log.Warn("cannot find out whether trees can be mounted", "assumed", true, "cause", err)
		return nil
	}
	mode, err := t.kernel.mountErofs(metadata, device, point)
	if err == nil {
		t.log.Debug("trees can be mounted", "mode", mode)
	}
	if failed := errors.Join(unmount(point), os.RemoveAll(dir)); failed != nil {
		t.log.Warn("what trying to mount a tree made is left", "cause", failed)
	}
	switch {
	case errors.Is(err, unix.ENODEV):
		return errNoErofs
	case err != nil:
		return fmt.Errorf("this machine cannot mount trees: %w", err)
	}
	return nil
}
