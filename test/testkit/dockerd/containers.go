package dockerd

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Pull does what `docker pull` does.
func (e *Engine) Pull(ctx context.Context, ref string) error {
	name, tag := CutTag(ref)
	_, err := e.Follow(ctx, "/images/create?"+url.Values{"fromImage": {name}, "tag": {tag}}.Encode(), nil)
	return err
}

// CutTag cuts a reference before its tag.
func CutTag(ref string) (name, tag string) {
	at := strings.LastIndexByte(ref, ':')
	return ref[:at], ref[at+1:]
}

// Create does what `docker create --network none` does, and returns the container's ID.
func (e *Engine) Create(ctx context.Context, image string, argv ...string) (id string, err error) {
	var made struct{ ID string }
	err = e.Ask(ctx, http.MethodPost, "/containers/create", map[string]any{"Image": image, "Cmd": argv,
		"HostConfig": map[string]any{"NetworkMode": "none"}}, &made)
	return made.ID, err
}

// StartContainer does what `docker start` does.
func (e *Engine) StartContainer(ctx context.Context, id string) error {
	return e.Ask(ctx, http.MethodPost, "/containers/"+id+"/start", nil, nil)
}

// Remove does what `docker rm --force` does.
func (e *Engine) Remove(ctx context.Context, id string) error {
	return e.Ask(ctx, http.MethodDelete, "/containers/"+id+"?force=1&v=1", nil, nil)
}

// Run does what `docker run --rm --network none` does with an image that was pulled, and returns
// the output of the process. An exit code other than 0 is an error.
func (e *Engine) Run(ctx context.Context, image string, argv ...string) (output string, err error) {
	id, err := e.Create(ctx, image, argv...)
	if err != nil {
		return "", err
	}
	if err := e.StartContainer(ctx, id); err != nil {
		return "", err
	}
	var ended struct{ StatusCode int }
	if err := e.Ask(ctx, http.MethodPost, "/containers/"+id+"/wait", nil, &ended); err != nil {
		return "", err
	}
	if output, err = e.Read(ctx, http.MethodGet, "/containers/"+id+"/logs?stdout=1&stderr=1", nil); err != nil {
		return "", err
	}
	if output, err = demultiplex(output); err != nil {
		return "", err
	}
	if ended.StatusCode != 0 {
		return "", fmt.Errorf("%q: exit code %d: %s", argv, ended.StatusCode, output)
	}
	return output, e.Remove(ctx, id)
}

// Exec does what `docker exec` does, and returns the output of the process. An exit code other than
// 0 is an error.
func (e *Engine) Exec(ctx context.Context, id string, argv ...string) (output string, err error) {
	var made struct{ ID string }
	if err := e.Ask(ctx, http.MethodPost, "/containers/"+id+"/exec",
		map[string]any{"Cmd": argv, "AttachStdout": true, "AttachStderr": true}, &made); err != nil {
		return "", err
	}
	if output, err = e.Read(ctx, http.MethodPost, "/exec/"+made.ID+"/start", map[string]any{}); err != nil {
		return "", err
	}
	if output, err = demultiplex(output); err != nil {
		return "", err
	}
	var ended struct {
		Running  bool
		ExitCode int
	}
	err = e.Ask(ctx, http.MethodGet, "/exec/"+made.ID+"/json", nil, &ended)
	if err == nil && (ended.Running || ended.ExitCode != 0) {
		err = fmt.Errorf("exec %q: %+v: %s", argv, ended, output)
	}
	return output, err
}

// demultiplex joins the frames of both outputs of a process: each has a header of eight bytes, the
// last four of which are its length.
func demultiplex(stream string) (string, error) {
	var out strings.Builder
	for len(stream) >= 8 {
		n := int(binary.BigEndian.Uint32([]byte(stream[4:8])))
		if len(stream) < 8+n {
			return "", fmt.Errorf("a frame of %d bytes in %q", n, stream)
		}
		out.WriteString(stream[8 : 8+n])
		stream = stream[8+n:]
	}
	return out.String(), nil
}
