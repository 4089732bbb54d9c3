package broker

// A Crew counts the messages of agents. Its method may be called concurrently and uses no transaction.
type Crew interface {
	// Worked counts messages that an agent has sent, received and processed. The broker calls it in
	// the writer, after the commit.
	Worked(session, agent string, sent, received, processed int)
}

// UseCrew sets the crew. Call it before the broker is used.
func (b *Broker) UseCrew(c Crew) { b.crew = c }

// worked counts messages of an agent. It runs after the commit.
func (b *Broker) worked(a Actor, sent, received, processed int) {
	if b.crew != nil && !a.System() {
		b.crew.Worked(a.Session.Name, a.Name, sent, received, processed)
	}
}
