package hooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// event says that an image may have changed. Of all that senders write, only these fields are read.
// They are not trusted: other fields, such as URLs of images, are ignored.
type event struct {
	repository string // without a host
	reference  string // a tag or a digest; empty: any
	deletion   bool
}

// errNoEvents means that a body is not of the form that the hook's sender writes.
var errNoEvents = errors.New("the body has no events of the hook's kind")

// parse parses a body.
func parse[T any](body []byte) (T, error) {
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errNoEvents, err)
	}
	return v, nil
}

// harborData is what both formats of Harbor have about an event.
type harborData struct {
	Resources []struct {
		Digest string `json:"digest"`
		Tag    string `json:"tag"`
	} `json:"resources"`
	Repository struct {
		FullName string `json:"repo_full_name"`
	} `json:"repository"`
	Replication struct {
		Destination struct {
			Namespace string `json:"namespace"`
		} `json:"dest_resource"`
		Successful []struct {
			NameTag string `json:"name_tag"`
		} `json:"successful_artifact"`
	} `json:"replication"`
}

// decodeHarbor decodes an event of Harbor: in its own format, or as a CloudEvent.
func decodeHarbor(body []byte) ([]event, error) {
	type envelope struct {
		Type        string     `json:"type"`
		EventData   harborData `json:"event_data"`
		SpecVersion string     `json:"specversion"`
		Data        harborData `json:"data"`
	}
	e, err := parse[envelope](body)
	if err != nil {
		return nil, err
	}
	if e.Type == "" {
		return nil, errNoEvents
	}
	data := e.EventData
	if e.SpecVersion != "" {
		data = e.Data
	}
	switch e.Type {
	case "PUSH_ARTIFACT", "harbor.artifact.pushed":
		return data.events(false), nil
	case "DELETE_ARTIFACT", "harbor.artifact.deleted":
		return data.events(true), nil
	case "REPLICATION", "harbor.replication.status.changed":
		return data.replicated(), nil
	}
	return nil, nil // pulls, scans, quotas, and the test of an endpoint
}

func (d *harborData) events(deletion bool) (all []event) {
	for _, r := range d.Resources {
		all = append(all, event{d.Repository.FullName, cmp.Or(r.Tag, r.Digest), deletion})
	}
	return all
}

// replicated returns the images that a replication has written. Harbor writes NAME:TAG, or the name
// and a number of images: NAME [2 item(s) in total].
func (d *harborData) replicated() (all []event) {
	for _, a := range d.Replication.Successful {
		nameTag, _, _ := strings.Cut(a.NameTag, " ")
		name, tag, _ := strings.Cut(nameTag, ":")
		if namespace := d.Replication.Destination.Namespace; namespace != "" {
			name = namespace + "/" + name
		}
		all = append(all, event{repository: name, reference: tag})
	}
	return all
}

// decodeDistribution decodes an envelope of notifications, of version 1 or 2: what is read of them
// is the same.
func decodeDistribution(body []byte) (all []event, err error) {
	type envelope struct {
		Events []struct {
			Action string `json:"action"`
			Target struct {
				MediaType  string `json:"mediaType"`
				Digest     string `json:"digest"`
				Repository string `json:"repository"`
				Tag        string `json:"tag"`
			} `json:"target"`
		} `json:"events"`
	}
	e, err := parse[envelope](body)
	if err != nil {
		return nil, err
	}
	if e.Events == nil {
		return nil, errNoEvents
	}
	for _, one := range e.Events {
		target := one.Target
		isImage := strings.Contains(target.MediaType, ".manifest.") || strings.Contains(target.MediaType, ".index.")
		switch {
		case one.Action == "push" && (isImage || target.Tag != ""):
			all = append(all, event{repository: target.Repository, reference: cmp.Or(target.Tag, target.Digest)})
		case one.Action == "delete": // of a manifest, a tag, or a blob, of which the hub has no names
			all = append(all, event{target.Repository, cmp.Or(target.Tag, target.Digest), true})
		}
	}
	return all, nil
}

// decodeGitLab decodes notifications of GitLab's registry, or the event of a pipeline or a job. The
// latter do not say which images were pushed: all of the project's names are looked at.
func decodeGitLab(body []byte) ([]event, error) {
	type webhook struct {
		Events     json.RawMessage `json:"events"`
		Kind       string          `json:"object_kind"`
		Attributes struct {
			Status string `json:"status"`
		} `json:"object_attributes"`
		BuildStatus string `json:"build_status"`
		Project     struct {
			Path string `json:"path_with_namespace"`
		} `json:"project"`
	}
	e, err := parse[webhook](body)
	switch {
	case err != nil:
		return nil, err
	case e.Events != nil:
		return decodeDistribution(body)
	case e.Kind == "":
		return nil, errNoEvents
	case e.Kind == "pipeline" && e.Attributes.Status == "success", e.Kind == "build" && e.BuildStatus == "success":
		if e.Project.Path != "" {
			return []event{{repository: strings.ToLower(e.Project.Path)}}, nil
		}
	}
	return nil, nil
}

// decodeDockerHub decodes the event that an image was pushed to Docker Hub.
func decodeDockerHub(body []byte) ([]event, error) {
	type webhook struct {
		Push struct {
			Tag string `json:"tag"`
		} `json:"push_data"`
		Repository struct {
			Name string `json:"repo_name"`
		} `json:"repository"`
	}
	e, err := parse[webhook](body)
	if err != nil {
		return nil, err
	}
	if e.Repository.Name == "" {
		return nil, errNoEvents
	}
	return []event{{repository: e.Repository.Name, reference: e.Push.Tag}}, nil
}

// plainEvent is an event in the hub's own form.
type plainEvent struct {
	Repository string `json:"repository"`
	Tag        string `json:"tag"`
	Digest     string `json:"digest"`
	Deleted    bool   `json:"deleted"`
}

// decodePlain decodes an event, or a list of events, in the hub's own form.
func decodePlain(body []byte) (all []event, err error) {
	list, err := parse[[]plainEvent](body)
	if err != nil {
		one, oneErr := parse[plainEvent](body)
		if oneErr != nil {
			return nil, oneErr
		}
		list = []plainEvent{one}
	}
	for _, e := range list {
		if e.Repository == "" {
			return nil, fmt.Errorf("%w: repository is missing", errNoEvents)
		}
		all = append(all, event{e.Repository, cmp.Or(e.Tag, e.Digest), e.Deleted})
	}
	return all, nil
}
