package site

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// CRI is a connection to containerd's CRI services as the kubelet has one: a CRI client,
// test/tools/cri. It makes one call at a time.
type CRI struct {
	cmd       *exec.Cmd
	calls     io.WriteCloser
	responses *bufio.Reader
	stderr    strings.Builder
}

// StartCRI starts a CRI client, which ends with ctx. The caller closes it.
func (m *Machine) StartCRI(ctx context.Context) (*CRI, error) {
	c := &CRI{cmd: m.site.program(ctx, m.Inside(filepath.Join(m.site.tools, "cri"), m.ContainerdSocket()))}
	c.cmd.Stderr = &c.stderr
	var err error
	if c.calls, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	responses, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.responses = bufio.NewReader(responses)
	return c, c.cmd.Start()
}

// Call calls a method. The request and the response are the messages as JSON; response may be nil.
// After an error, the client can only be closed, and Close has the cause.
func (c *CRI) Call(method string, request, response any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.calls, "%s %s\n", method, text); err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	line, err := c.responses.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	if response == nil {
		return nil
	}
	if err := json.Unmarshal(line, response); err != nil {
		return fmt.Errorf("read the response of %s: %w", method, err)
	}
	return nil
}

// Close ends the client. Its error is the client's, if a call has failed.
func (c *CRI) Close() error {
	_ = c.calls.Close() // it may be closed
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(c.stderr.String()))
	}
	return nil
}

// CRI makes one call with a client of its own.
func (m *Machine) CRI(ctx context.Context, method string, request, response any) error {
	c, err := m.StartCRI(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.Call(method, request, response), c.Close())
}
