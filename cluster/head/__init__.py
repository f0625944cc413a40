"""What the head of a Ray cluster keeps of an application, beyond its processes and its deploys."""
