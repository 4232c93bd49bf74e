package buildkit

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// raw passes messages on as bytes. BuildKit's own client has ten times as many dependencies as the
// two fields that are read here are worth.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Numbers of fields in BuildKit's messages (api/services/control, api/types).
const (
	recordField protowire.Number = 1 // of ListWorkersResponse: a worker
	labelField  protowire.Number = 2 // of WorkerRecord: an entry of a map
	keyField    protowire.Number = 1
	valueField  protowire.Number = 2
)

// snapshotterLabel is the label of a worker that names its snapshotter.
const snapshotterLabel = "org.mobyproject.buildkit.worker.snapshotter"

// snapshotters asks a buildkitd for the snapshotters of its workers, the default worker's first.
func snapshotters(ctx context.Context, socket string) ([]string, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var request, response []byte
	if err := conn.Invoke(ctx, "/moby.buildkit.v1.Control/ListWorkers", &request, &response,
		grpc.ForceCodec(raw{})); err != nil {
		return nil, fmt.Errorf("list the workers of buildkitd at %s: %w", socket, err)
	}
	var names []string
	err = fields(response, recordField, func(worker []byte) error {
		return fields(worker, labelField, func(label []byte) error {
			var key, value string
			err := errors.Join(fields(label, keyField, func(b []byte) error { key = string(b); return nil }),
				fields(label, valueField, func(b []byte) error { value = string(b); return nil }))
			if key == snapshotterLabel {
				names = append(names, value)
			}
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the workers of buildkitd at %s: %w", socket, err)
	}
	return names, nil
}

// fields calls fn for each field of a message that has a number and a length.
func fields(message []byte, number protowire.Number, fn func([]byte) error) error {
	for len(message) > 0 {
		n, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(n, kind, message[tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[tag:])
			if err := fn(value); err != nil {
				return err
			}
		}
		message = message[tag+size:]
	}
	return nil
}
