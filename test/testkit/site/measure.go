package site

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"lighter/node/control"
)

// Bytes returns the number of bytes that the machine has received over the link. It includes packet
// headers, as the kernel counts them: one header for a large packet that was not segmented.
func (m *Machine) Bytes() (int64, error) {
	path := fmt.Sprintf("/proc/%d/net/dev", m.holder.pid())
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "eth0" {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s does not name eth0", path)
}

// DropCaches writes back dirty pages and drops the page cache, dentries and inodes of the whole
// host.
func DropCaches() error {
	syscall.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200)
}

// Memory is the memory of a process, in bytes.
type Memory struct {
	Now  int64 // resident set size
	Most int64 // peak of the resident set size
}

// NodeMemory returns the memory of the node.
func (m *Machine) NodeMemory() (Memory, error) { return memoryOf(m.node) }

// ResetPeaks resets Memory.Most of the hub and the node.
func (s *Site) ResetPeaks() error {
	var errs []error
	for _, p := range []*process{s.Hub.process, s.Machine.node} {
		errs = append(errs, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid()), []byte("5"), 0o200))
	}
	return errors.Join(errs...)
}

func memoryOf(p *process) (Memory, error) {
	fields, err := memoryFields(fmt.Sprintf("/proc/%d/status", p.pid()))
	return Memory{Now: fields["VmRSS"], Most: fields["VmHWM"]}, err
}

// PageCache returns the size of the whole host's page cache, in bytes, without tmpfs.
func PageCache() (int64, error) {
	fields, err := memoryFields("/proc/meminfo")
	return fields["Cached"] + fields["Buffers"] - fields["Shmem"], err
}

// memoryFields reads a file of /proc with lines like "Name: 12 kB". It returns the values in
// bytes.
func memoryFields(path string) (map[string]int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	values := map[string]int64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		values[strings.TrimSuffix(fields[0], ":")] = n << 10
	}
	return values, lines.Err()
}

// NodeStatus decodes the output of `lighter status --json`.
func (m *Machine) NodeStatus(ctx context.Context, into any) error {
	out, err := m.Lighter(ctx, "status", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	return err
}

// NodeProfile returns a profile of the node. name is a path below /debug/pprof/, for example
// "heap", "goroutine?debug=1" or "profile?seconds=5".
func (m *Machine) NodeProfile(ctx context.Context, name string) ([]byte, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", control.Socket(m.NodeRoot()))
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/debug/pprof/"+name, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("profile %s of the node: %s", name, res.Status)
	}
	return io.ReadAll(res.Body)
}

// diskUsage returns the disk space that a directory uses, in bytes. A file with several hard links
// counts once.
func diskUsage(dir string) (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a running process has removed it
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		if !seen[stat.Ino] {
			seen[stat.Ino] = true
			sum += stat.Blocks * 512
		}
		return nil
	})
	return sum, err
}
