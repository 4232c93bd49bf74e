package fuse

import "time"

var ReasonLate = Reasons[reasonLate]

func (s *Server) SetDeadline(d time.Duration) { s.deadline = d }
