package hubs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lighter/wire"
	"lighter/wire/client"
)

// store names the catalog and the bucket of a hub. The zero value means: an SQLite file and a
// directory below the hub's root.
type store struct{ catalog, bucket string }

// process is a running hub process.
type process struct {
	*client.Client
	root, address string
	cmd           *exec.Cmd
}

const startTimeout = time.Minute // until a started hub has to answer

// nextRoot returns the name of a directory for a hub.
func (r *run) nextRoot() string {
	r.roots++
	return filepath.Join(r.dir, fmt.Sprintf("hub-%d", r.roots))
}

// start starts a process of a hub, in an empty directory.
func (r *run) start(ctx context.Context, lighter string, s store) (*process, error) {
	return r.startAt(ctx, lighter, r.nextRoot(), s, "")
}

// startAt starts a process of a hub in a directory. settings are further lines of its
// configuration.
func (r *run) startAt(ctx context.Context, lighter, root string, s store, settings string) (*process, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &process{root: root, address: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	config := fmt.Sprintf("root = %q\nlisten = %q\n", p.root, p.address)
	if s != (store{}) {
		config += fmt.Sprintf("catalog = %q\nbucket = %q\n", s.catalog, s.bucket)
	}
	settings += "\n[[registry]]\nhost = \"127.0.0.1\"\nprivate = true\n"
	if err := os.WriteFile(p.root+".toml", []byte(config+settings), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(p.root + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(lighter, "hub", "--config", p.root+".toml")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if p.Client, err = client.New(client.Options{URL: "http://" + p.address}); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	for end := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		if _, err = p.Keys(ctx); err == nil {
			return p, nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("the hub does not answer: %w\n%s", err, text), p.stop())
		}
	}
}

// end ends the process.
func (p *process) end() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.cmd.Wait()
}

// stop ends the process and removes its directory.
func (p *process) stop() error { return errors.Join(p.end(), os.RemoveAll(p.root)) }

// push pushes an OCI layout.
func (p *process) push(ctx context.Context, layout, name string) error {
	cmd := exec.CommandContext(ctx, "skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests",
		"--dest-tls-verify=false", "oci:"+layout+":latest", "docker://"+p.address+"/"+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("skopeo copy: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// ready waits until the images of a name are ready.
func (p *process) ready(ctx context.Context, name string) error {
	for {
		images, err := p.Images(ctx, name)
		if err != nil {
			return err
		}
		pending := len(images) == 0
		for _, i := range images {
			if i.State == wire.StateFailed {
				return errors.New(i.Error)
			}
			pending = pending || i.State != wire.StateReady
		}
		if !pending {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// processor returns the seconds of processor time that the process has used.
func (p *process) processor() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses; fields 14 and 15 are in units of 10
	// ms.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("parse /proc/PID/stat: %q", text)
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, err
}

// seconds calls fn, and returns the seconds that the call took.
func seconds(fn func() error) (float64, error) {
	started := time.Now()
	err := fn()
	return time.Since(started).Seconds(), err
}
