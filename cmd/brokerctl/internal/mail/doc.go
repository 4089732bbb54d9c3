// Package mail shows messages and pieces of work to people and models, and waits for new ones without taking any.
package mail
