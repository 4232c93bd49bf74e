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
	errNoErofs = errors.New("this kernel has no EROFS: " +
		"load the module erofs, or use a kernel with CONFIG_EROFS_FS")
	errModeNone = errors.New("this node is configured to mount no trees (mount_mode is none)")
)

// Probe mounts an empty tree to find out whether trees can be mounted, and stores the result for
// CheckMountable. It is called once, before the first Mount.
func (m *Mounts) Probe() {
	m.probing.Lock()
	defer m.probing.Unlock()
	_ = m.probe() // probe logs and stores the error
}

// CheckMountable returns an error if this machine cannot mount trees. Existing mounts are not
// affected. After a failed probe it probes again, at most once in probePause, because the cause may
// be gone: the kernel may have been short of memory, or without a module.
func (m *Mounts) CheckMountable() error {
	m.mu.Lock()
	unable, due := m.unable, time.Since(m.probed) >= probePause
	m.mu.Unlock()
	if unable == nil || m.kernel.mode == None || !due || !m.probing.TryLock() {
		return unable
	}
	defer m.probing.Unlock()
	return m.probe()
}

// probe mounts an empty tree, stores the result, and logs it if it has changed. The caller has
// locked probing.
func (m *Mounts) probe() error {
	err := m.tryMount()
	m.mu.Lock()
	before := m.unable
	m.unable, m.probed = err, time.Now()
	m.mu.Unlock()
	switch {
	case err != nil && (before == nil || err.Error() != before.Error()):
		m.log.Error("no image will be lazy: all images are unpacked as usual", "err", err)
	case err == nil && before != nil:
		m.log.Info("trees can be mounted now: images that are pulled from now on may be lazy")
	}
	return err
}

// probePoint returns the directory below root on which Probe mounts an empty tree.
func probePoint(root string) string { return filepath.Join(root, "probe", "mount") }

// tryMount mounts an empty tree and unmounts it. If it fails before it calls the kernel, it logs
// the failure and returns nil, because the kernel may be able to mount trees.
func (m *Mounts) tryMount() error {
	if m.kernel.mode == None {
		return errModeNone
	}
	point := probePoint(m.root)
	dir := filepath.Dir(point)
	metadata, device := filepath.Join(dir, "metadata"), filepath.Join(dir, "device")
	var image bytes.Buffer
	_, err := index.Make(&tree.Tree{Root: tree.NewDir(tree.Node{Mode: 0o755}, nil)}, &image)
	if err == nil {
		err = errors.Join(unmount(point), os.RemoveAll(dir)) // left by a probe that was killed
	}
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(point, 0o700),
			os.WriteFile(metadata, image.Bytes(), 0o400), os.WriteFile(device, nil, 0o400))
	}
	if err != nil {
		m.log.Warn("cannot find out whether trees can be mounted: assuming that they can", "err", err)
		return nil
	}
	mode, err := m.kernel.mountErofs(metadata, device, point)
	if err == nil {
		m.log.Debug("trees can be mounted", "mode", mode)
	}
	if failed := errors.Join(unmount(point), os.RemoveAll(dir)); failed != nil {
		m.log.Warn("cannot remove the trial mount", "err", failed)
	}
	switch {
	case errors.Is(err, unix.ENODEV):
		return errNoErofs
	case err != nil:
		return fmt.Errorf("this machine cannot mount trees: %w", err)
	}
	return nil
}
